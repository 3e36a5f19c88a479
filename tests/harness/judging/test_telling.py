"""Agreements that an engine gets that computes nothing: constants, and NaN for everything."""

import numpy as np

from lockstep.harness.judging.telling import why_nothing_is_told

RANDOM = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)


def why(expected: np.ndarray, got: np.ndarray | None = None, allowed: float = 1e-6) -> str:
    return why_nothing_is_told(expected, expected if got is None else got, allowed, "logit")


def test_different_rows_tell() -> None:
    assert why(RANDOM) == ""
    assert why(RANDOM[:1]) == ""


def test_zeros_and_small_numbers_tell_nothing() -> None:
    assert "one number" in why(np.zeros((5, 7), np.float32))
    assert "one number" in why(np.zeros((1, 7), np.float32))
    assert "one number" in why(RANDOM, allowed=float(np.ptp(RANDOM)))


def test_equal_rows_tell_nothing_unless_they_must_be_equal() -> None:
    rows = np.repeat(RANDOM[:1], 5, axis=0)
    assert "each row is the same" in why(rows)
    assert why_nothing_is_told(rows, rows, 1e-6, "logit", rows_differ=False) == ""


def test_nan_of_either_engine_tells_nothing() -> None:
    nan = np.full_like(RANDOM, np.nan)
    assert "5 of 5 rows" in why(RANDOM, nan)
    assert "5 of 5 rows" in why(nan, RANDOM)
    one = RANDOM.copy()
    one[2] = np.nan
    assert "1 of 5 rows" in why(one)


def test_most_columns_of_nan_tell_nothing_and_a_few_are_left_out() -> None:
    some = RANDOM.copy()
    some[:, :2] = np.inf
    assert why(some) == ""
    some[:, :4] = np.nan
    assert "20 of 35 numbers are not finite" in why(some)


def test_no_rows_tell_nothing() -> None:
    assert why(np.zeros((0, 7), np.float32)) == "there is no logit"
