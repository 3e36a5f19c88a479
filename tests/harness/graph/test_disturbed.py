"""A number is moved by a random share, from -1 to 1, of its allowed error. Integers are not
moved."""

import numpy as np
import pytest

from lockstep.harness.graph.disturbed import disturb_values
from lockstep.harness.synth.draws import raw
from tests.shadow_nodes import normal

N = 4096
DRAWN = raw(1, "shares", N)
SHARES = (DRAWN >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1


@pytest.mark.parametrize("allowed", [np.abs(normal(3, N)).astype(np.float64), np.array(1e-3)])
def test_each_element_is_moved_by_its_own_share(allowed: np.ndarray) -> None:
    values = normal(2, N).astype(np.float64)
    assert np.array_equal(disturb_values(values, allowed, DRAWN), values + SHARES * allowed)
    assert -1 <= SHARES.min() < -0.99
    assert 0.99 < SHARES.max() < 1


def test_integers_stay_unless_all_floats_of_their_size_are_integers() -> None:
    values = np.array([0.0, 3.0, -7.0, 2.0**24 - 1, 2.0**24, 0.5])
    found = disturb_values(values, np.ones(6), DRAWN[:6])
    assert list(found == values) == [True, True, True, True, False, False]


def test_number_without_a_finite_bound_affects_no_other_number() -> None:
    values, allowed = normal(2, 4).astype(np.float64), np.array([1e-3, np.inf, np.nan, 1e-3])
    found = disturb_values(values, allowed, DRAWN[:4])
    assert np.isinf(found[1])
    assert found[2] == values[2]
    assert np.array_equal(found[[0, 3]], (values + SHARES[:4] * 1e-3)[[0, 3]])
