"""The judgement of one op. It blames no honest engine, and finds the place of a single wrong
element."""

from typing import Any

import numpy as np
import pytest

from lockstep.engine.quants.base import F32
from lockstep.harness.judging.judge import (
    SiteFinding,
    affected_alone,
    conforms,
    finding_of,
    smallest_scale_error,
)
from lockstep.harness.judging.noise import BoundedOps, carry_bound
from lockstep.harness.judging.tolerances import Bound, limits_of, where_limited
from lockstep.harness.records import Site
from lockstep.harness.report.text import explain_finding
from lockstep.harness.shadow.judge import rounded_to
from tests.shadow_nodes import expected, four, params


def test_smallest_visible_scale_error_is_four_bounds_of_the_best_element() -> None:
    truth, allowed = np.array([1.0, -8.0, 0.0, np.nan]), np.array([1e-6, 2e-6, 1e-6, 1e-6])
    assert smallest_scale_error(truth, allowed) == pytest.approx(1e-6, rel=1e-5)
    assert smallest_scale_error(np.zeros(3), np.full(3, 1e-6)) == float("inf")


@pytest.mark.parametrize(
    ("wrong", "alone"),
    [
        ((slice(8, 16), slice(0, 3)), {-3: tuple(range(8, 16))}),
        ((slice(0, 16), 2), {-2: (2,)}),
        ((5, 1), {-3: (5,), -2: (1,)}),
        ((slice(0, 16), slice(0, 3)), {}),
    ],
)
def test_wholly_wrong_tokens_and_heads_are_recognised(wrong: Any, alone: Any) -> None:
    """The finding names the axes of 16 tokens and 3 heads."""
    truth = np.zeros((16, 3, 4), np.float32)
    shown = truth.copy()
    shown[(*wrong, 1)] = 1
    assert affected_alone(truth, shown, np.zeros(truth.shape)) == alone


OPS = BoundedOps(lanes=16)
# one NaN, and sums that overflow
X = np.array([[np.nan, 1.0, 2.0, 3.0], [3e38, 3e38, 1.0, 1.0]], np.float32)
TWOS = np.full(4, 2.0, np.float32)


@pytest.mark.parametrize("shown", [0.0, 9.0, np.inf])
@pytest.mark.parametrize(
    "compute",
    [
        lambda ops: ops.rms_norm(X, TWOS, 1e-5),
        lambda ops: ops.kq(X[:, None], np.ones((3, 1, 4), np.float32)),
        lambda ops: ops.swiglu(X, TWOS),
    ],
    ids=["norm", "product", "gate"],
)
def test_nan_input_gives_nan_and_possible_overflow_has_no_limit(compute: Any, shown: float) -> None:
    truth = compute(OPS)
    wrong = truth.copy()
    wrong[..., 1, 0] = shown
    assert conforms(wrong, truth, truth.bound, ())
    wrong = truth.copy()
    wrong[..., 0, 0] = shown
    assert np.isnan(truth[..., 0, 0])
    assert not conforms(wrong, truth, truth.bound, ())


def test_nan_in_a_hidden_cell_may_reach_the_sum() -> None:
    """llama.cpp multiplies the NaN by a weight of zero. An engine that skips the cell gets a number
    instead."""
    p = np.array([[[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]], np.float32)
    v = np.array([[[1.0]], [[2.0]], [[np.nan]]], np.float32)
    truth = carry_bound(OPS.kqv(p, v))
    assert np.isnan(truth).all()
    left_out = np.array([[1.5], [np.nan]], np.float32)
    assert conforms(left_out, truth, truth.bound, ())
    left_out[1] = 1.0
    assert not conforms(left_out, truth, truth.bound, ())


SITE = Site(step=1, layer=None, name="result_output")
TRUTH = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
BOUND = Bound(1e-6, "a rounding")


def off(index: tuple[int, int], by: float) -> F32:
    value = TRUTH.copy()
    value[index] += np.float32(by)
    return value


def found_of(oracle: F32, subject: F32 | None) -> SiteFinding:
    return finding_of(SITE, "MUL_MAT", TRUTH, oracle, subject, BOUND, ())


def test_two_honest_values_may_be_two_bounds_apart() -> None:
    found = found_of(off((0, 1), 9e-7), off((0, 1), -9e-7))
    assert (found.mismatch, found.at_fault) == (None, "")
    assert (found.compared, found.allowed) == (12, 1e-6)


@pytest.mark.parametrize("bad", [0.5, np.nan, np.inf, -np.inf])
def test_wrong_element_is_located(bad: float) -> None:
    found = found_of(TRUTH, off((2, 1), bad))
    assert found.mismatch is not None
    assert (found.mismatch.index, found.mismatch.mismatched) == ((2, 1), 1)
    assert (found.at_fault, found.outputs) == ("subject", (1,))


def test_engine_beyond_its_bound_is_blamed() -> None:
    assert found_of(off((0, 3), 0.5), TRUTH).at_fault == "oracle"
    assert found_of(off((0, 3), 0.5), off((0, 2), 0.5)).at_fault == "both"
    same = found_of(off((0, 3), 0.5), off((0, 3), 0.5))
    assert same.at_fault == "both"
    assert same.mismatch is not None


def test_missing_tensor_and_one_of_another_shape_are_mismatches() -> None:
    missing, short = found_of(TRUTH, None), found_of(TRUTH[:1], TRUTH)
    assert missing.mismatch is not None
    assert missing.mismatch.kind == "missing"
    assert explain_finding(missing).endswith("missing, although the engine offers this tensor")
    assert short.mismatch is not None
    assert (short.mismatch.kind, short.at_fault) == ("shape", "oracle")


NUMBERS = np.array([[1.0, 2.0, 3.0, 4.0], [4.0, -3.0, 2.0, 1.0]], np.float32)


@pytest.mark.parametrize(
    ("bad", "shown", "fault"),
    [
        (np.nan, np.nan, ""),
        (np.nan, 0.25, "subject"),
        (np.nan, np.inf, "subject"),
        (np.inf, np.inf, ""),
        (np.inf, np.nan, ""),  # a part of the sum may overflow in the other direction
        (np.inf, 5.0, "subject"),
        (np.inf, -np.inf, "subject"),
        (3e38, 5.0, ""),  # partial sums overflow or not, depending on the order
    ],
)
def test_result_of_nan_or_infinity_is_nan(bad: float, shown: float, fault: str) -> None:
    x = NUMBERS.copy()
    x[1] = [bad, abs(bad), 1.0, 1.0]
    asked = expected("MUL_MAT", NUMBERS[:, :2], np.abs(NUMBERS), x)
    bound = Bound(limits_of(asked.value, asked.allowed), asked.reason)
    truth = rounded_to(asked.value, four(NUMBERS[:, :2]))
    subject = truth.copy()
    subject[..., 1, 0] = shown
    assert finding_of(SITE, "MUL_MAT", truth, truth, subject, bound, ()).at_fault == fault


def test_nan_bound_allows_only_nan_and_infinity() -> None:
    truth = np.array([1.0, np.nan, np.inf, np.inf, 2.0])
    shown = np.array([1.0, 7.0, np.nan, 5.0, 3.0])
    allowed = np.array([1e-6, np.nan, np.nan, np.nan, np.inf])
    held = where_limited(truth, shown, allowed)
    np.testing.assert_array_equal(held, [1.0, 7.0, np.inf, 5.0, 2.0])


def test_engine_that_skips_hidden_cells_may_have_numbers_for_nan() -> None:
    scores = np.array([[1.0, np.inf], [1.0, np.nan]], np.float32)
    mask = np.array([[0.0, -np.inf], [0.0, 0.0]], np.float32)
    found = expected("SOFT_MAX", scores, scores, mask, held=params(1.0, 0.0))
    assert np.isnan(found.value).all()
    free = np.isposinf(limits_of(found.value, found.allowed))
    assert free[0, 0].tolist() == [[True, True], [False, False]]
    weights, values = np.array([[0.0, 1.0], [1.0, 0.0]], np.float32), [[np.nan, 2.0]]
    found = expected("MUL_MAT", scores[:, :1], np.array(values, np.float32), weights)
    assert np.isnan(found.value).all()
    assert np.isposinf(found.allowed).ravel().tolist() == [True, False]
