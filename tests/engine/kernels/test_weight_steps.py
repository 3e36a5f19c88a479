"""Conversion of weights to integers, and the copy of bytes."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.kernels.lanes import kernel
from lockstep.engine.kernels.raw_bytes import copy_bytes
from lockstep.engine.kernels.weight_steps import whole


@kernel
def copied(to: NDArray[np.uint8], raw: NDArray[np.uint8], at: int) -> None:
    copy_bytes(to, raw, at)


def steps_of(
    weights: NDArray[Any], kind: type, *, mask: int = -1, offset: int = 0
) -> tuple[bool, NDArray[Any]]:
    limits = (np.int32(-128), np.int32(127), np.int32(offset))
    out = np.zeros(len(weights), kind)
    fine = whole(weights.astype(np.float32), np.float32(4), np.int32(mask), *limits, out)
    return fine, out


@pytest.mark.parametrize(("kind", "offset"), [(np.uint8, 128), (np.int16, 0)])
def test_multiples_of_a_quarter_become_integers(kind: type, offset: int) -> None:
    steps = np.arange(-128, 128)
    fine, out = steps_of(steps / 4, kind, offset=offset)
    assert fine
    assert np.array_equal(out.astype(int) - offset, steps)


@pytest.mark.parametrize("place", [0, 15, 16, 31])
@pytest.mark.parametrize("value", [0.125, 32.0, -32.25, 1e9, -1e30, np.inf, -np.inf, np.nan])
def test_weight_that_is_not_a_step_disqualifies_the_row(value: float, place: int) -> None:
    weights = np.zeros(32)
    weights[place] = value
    for kind, offset in ((np.uint8, 128), (np.int16, 0)):
        assert not steps_of(weights, kind, offset=offset)[0]


def test_steps_exclude_minima_in_higher_bits() -> None:
    steps, minima = np.arange(32) % 16, np.arange(32) - 16
    fine, out = steps_of((steps + (minima << 11)) / 4, np.int16, mask=(1 << 11) - 1)
    assert fine
    assert np.array_equal(out, steps)


def test_copy_stops_at_the_end_of_the_target() -> None:
    raw, to = np.arange(100, dtype=np.uint8), np.zeros(40, np.uint8)
    copied(to[:33], raw, 7)
    assert to.tolist() == [*range(7, 40), *[0] * 7]
