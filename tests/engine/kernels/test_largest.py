"""The largest number of each row, compared with numpy, and the effect of a NaN."""

import numpy as np
import pytest

from lockstep.engine.kernels.largest import largest_magnitude, signed_largest
from lockstep.engine.quants.base import F32


def rows(shape: tuple[int, ...]) -> F32:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(0, 32), (1, 1), (7, 32), (2, 3, 256)])
def test_magnitudes_are_those_of_numpy(shape: tuple[int, ...]) -> None:
    x = rows(shape)
    assert np.array_equal(largest_magnitude(x), np.abs(x).max(axis=-1, initial=0))


def test_nan_is_the_largest_magnitude_but_never_the_signed_largest() -> None:
    x = rows((3, 32))
    x[1, 5], x[2] = np.nan, np.nan
    assert np.isnan(largest_magnitude(x)).tolist() == [False, True, True]
    found = signed_largest(x)
    assert abs(found[1]) == np.nanmax(np.abs(x[1]))
    assert found[2] == 0


def test_signed_largest_is_the_first_of_equal_numbers() -> None:
    x = np.array([[1, -3, 3, 2], [0, 3, -3, -3], [-np.inf, np.inf, 0, 0], [0, -0.0, 0, 0]])
    assert signed_largest(x.astype(np.float32)).tolist() == [-3, 3, -np.inf, 0]


def test_views_of_other_arrays_are_accepted() -> None:
    x = rows((8, 64))[::2, ::2]
    assert np.array_equal(largest_magnitude(x), np.abs(x).max(axis=-1))
