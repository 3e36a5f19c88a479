"""The comparator: the worst element decides, and NaN and infinity match only themselves."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from lockstep.harness.judging.compare import bits, largest, mismatch_between, worst_distance

INF, NAN = math.inf, math.nan
FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)
SAME_SHAPE = array_shapes(max_dims=3, max_side=4).flatmap(
    lambda shape: st.tuples(
        arrays(np.float32, shape, elements=FLOATS), arrays(np.float32, shape, elements=FLOATS)
    )
)


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_worst_element_is_named_among_many_right_elements() -> None:
    expected = np.zeros((50, 40), np.float32)
    # all other elements are within the limit, so a mean would be too
    actual = expected + np.float32(0.009)
    actual[31, 7], actual[2, 3] = 0.5, 0.02
    found = mismatch_between(expected, actual, 0.01)
    assert found is not None
    assert found.kind == "value"
    assert found.index == (31, 7)
    assert (found.expected, found.actual, found.allowed) == (0.0, 0.5, 0.01)
    assert (found.mismatched, found.total) == (2, 2000)


def test_worst_element_is_measured_by_its_own_limit() -> None:
    found = mismatch_between(f32(0, 0), f32(10, 1), np.array([8.0, 0.1]))
    assert found is not None
    assert found.index == (1,)
    assert found.allowed == 0.1


def test_limit_is_inclusive() -> None:
    assert mismatch_between(f32(1.0), f32(1.5), 0.5) is None
    assert mismatch_between(f32(1.0), f32(1.5), np.nextafter(0.5, 0)) is not None


@pytest.mark.parametrize(
    ("expected", "actual", "agrees"),
    [
        (NAN, NAN, True),
        (INF, INF, True),
        (-INF, -INF, True),
        (0.0, -0.0, True),
        (INF, -INF, False),
        (INF, NAN, False),
        (NAN, INF, False),
        (NAN, 1.0, False),
        (1.0, NAN, False),
        (INF, 3e38, False),
        (3e38, INF, False),
        (-INF, 0.0, False),
    ],
)
@pytest.mark.parametrize("allowed", [0.0, 1e30, INF])
def test_nan_and_infinity_match_only_themselves(
    expected: float, actual: float, agrees: bool, allowed: float
) -> None:
    if allowed == INF and expected == 3e38:
        pytest.skip("an infinite limit allows what is infinitely far from a finite value")
    assert (mismatch_between(f32(expected), f32(actual), allowed) is None) is agrees


def test_sign_of_zero_matters_only_bitwise() -> None:
    plus, minus = f32(0.0), f32(-0.0)
    assert mismatch_between(plus, minus, 0.0) is None
    assert worst_distance(plus, minus) == 0
    assert not np.array_equal(bits(plus), bits(minus))
    assert np.array_equal(bits(f32(NAN)), bits(-f32(NAN)))


def test_a_missing_tensor_is_a_mismatch() -> None:
    found = mismatch_between(f32(1), None, 1e9)
    assert found is not None
    assert found.kind == "missing"


def test_broadcastable_shape_is_a_mismatch() -> None:
    found = mismatch_between(np.zeros((2, 3), np.float32), np.zeros((1, 3), np.float32), 1e9)
    assert found is not None
    assert found.kind == "shape"
    assert "(2, 3)" in found.detail
    assert "(1, 3)" in found.detail
    assert worst_distance(np.zeros((2, 3)), np.zeros((1, 3))) == INF


def test_empty_tensors_agree() -> None:
    empty = np.zeros((0, 4), np.float32)
    assert mismatch_between(empty, empty, 0.0) is None
    assert worst_distance(empty, empty) == 0
    assert largest(empty) == 0


def test_integers_are_compared_exactly() -> None:
    ids = np.array([[3, 1]], np.int32)
    assert mismatch_between(ids, ids, 0.0) is None
    assert mismatch_between(ids, ids[:, ::-1], 0.0) is not None


@settings(derandomize=True)
@given(SAME_SHAPE, st.floats(0, 1e3))
def test_agreement_is_symmetric(pair: tuple[np.ndarray, np.ndarray], allowed: float) -> None:
    a, b = pair
    assert (mismatch_between(a, b, allowed) is None) == (mismatch_between(b, a, allowed) is None)
    assert worst_distance(a, b) == worst_distance(b, a)


@settings(derandomize=True)
@given(SAME_SHAPE, st.floats(0, 1e3))
def test_values_outside_the_limit_never_pass(
    pair: tuple[np.ndarray, np.ndarray], allowed: float
) -> None:
    """The test judges each element again with Python's own floats."""
    a, b = pair
    within = all(
        x == y or (x != x and y != y) or abs(x - y) <= allowed
        for x, y in zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)
    )
    assert (mismatch_between(a, b, allowed) is None) is within


@settings(derandomize=True)
@given(arrays(np.float32, 6, elements=st.floats(-100, 100, width=32)), st.integers(0, 5))
def test_element_beyond_its_bound_is_located(a: np.ndarray, at: int) -> None:
    b = a.copy()
    b[at] += 1
    found = mismatch_between(a, b, 0.5)
    assert found is not None
    assert found.index == (at,)
    assert found.mismatched == 1


def test_largest_magnitude_ignores_infinity_and_nan() -> None:
    assert largest(f32(1, -5, INF, NAN)) == 5
    assert largest(f32(INF, NAN)) == 0


def test_distance_to_infinity_or_nan_is_infinite() -> None:
    assert worst_distance(f32(1, 2), f32(1, NAN)) == INF
    assert worst_distance(f32(NAN, INF), f32(NAN, INF)) == 0
    assert worst_distance(f32(1, 2), f32(1.5, 2)) == 0.5


def test_signalling_nan_is_a_nan_without_a_warning() -> None:
    signalling = np.array([0x7FA00000, 0xFF800001], "<u4").view(np.float32)
    assert mismatch_between(signalling, f32(NAN, NAN), 0.0) is None
    found = mismatch_between(f32(1, NAN), signalling, 1.0)
    assert found is not None
    assert found.index == (0,)
    assert worst_distance(signalling, signalling.copy()) == 0
    assert worst_distance(signalling, f32(1, NAN)) == INF
    assert largest(signalling) == 0
