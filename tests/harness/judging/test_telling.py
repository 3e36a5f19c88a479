"""Agreement proves nothing if an engine that computes nothing would agree too, for example on
constants or NaN."""

import numpy as np

from lockstep.harness.judging.telling import Why, why_nothing_is_told

RANDOM = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)


def why(expected: np.ndarray, got: np.ndarray | None = None, allowed: float = 1e-6) -> Why | None:
    found = why_nothing_is_told(expected, expected if got is None else got, allowed, "logit")
    return found.why if found else None


def test_different_rows_are_informative() -> None:
    assert why(RANDOM) is None
    assert why(RANDOM[:1]) is None


def test_zeros_and_small_numbers_are_uninformative() -> None:
    assert why(np.zeros((5, 7), np.float32)) is Why.ONE_NUMBER
    assert why(np.zeros((1, 7), np.float32)) is Why.ONE_NUMBER
    assert why(RANDOM, allowed=float(np.ptp(RANDOM))) is Why.ONE_NUMBER


def test_equal_rows_are_uninformative_unless_required() -> None:
    rows = np.repeat(RANDOM[:1], 5, axis=0)
    assert why(rows) is Why.SAME_ROWS
    assert why_nothing_is_told(rows, rows, 1e-6, "logit", rows_differ=False) is None


def test_row_with_nan_in_either_engine_is_uninformative() -> None:
    nan = np.full_like(RANDOM, np.nan)
    assert why(RANDOM, nan) is Why.EMPTY_ROWS
    assert why(nan, RANDOM) is Why.EMPTY_ROWS
    one = RANDOM.copy()
    one[2] = np.nan
    assert why(one) is Why.EMPTY_ROWS


def test_many_nan_columns_are_uninformative_and_few_are_skipped() -> None:
    some = RANDOM.copy()
    some[:, :2] = np.inf
    assert why(some) is None
    some[:, :4] = np.nan
    assert why(some) is Why.NOT_FINITE


def test_zero_rows_are_uninformative() -> None:
    assert why(np.zeros((0, 7), np.float32)) is Why.NO_ROWS
