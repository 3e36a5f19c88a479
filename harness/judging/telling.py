"""Trivial agreement: would an engine that computes nothing agree as well?

NaN agrees with NaN, and a constant agrees with logits that are all equal within the limit. Such an
agreement proves nothing about the engine, so it counts as not compared.
"""

from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32

NOTHING_TOLD = "nothing_told"  # key in a verdict's detail: the name of a Why


class Why(Enum):
    NO_ROWS = auto()
    EMPTY_ROWS = auto()
    NOT_FINITE = auto()
    ONE_NUMBER = auto()
    SAME_ROWS = auto()


@dataclass(frozen=True, kw_only=True)
class NothingTold:
    """The reason why an agreement proves nothing. words: a sentence for people."""

    why: Why
    words: str

    def __str__(self) -> str:
        return self.words


def why_nothing_is_told(
    expected: F32, got: F32, allowed: float, what: str, *, rows_differ: bool = True
) -> NothingTold | None:
    """Return why an agreement of two runs proves nothing; None if it proves something. expected,
    got: (outputs, vocabulary); allowed: the limit of their distance; rows_differ: True if the
    outputs belong to different tokens; then the rows of a right engine differ."""
    if not expected.size:
        return NothingTold(why=Why.NO_ROWS, words=f"the answer has no {what}")
    numbers = np.isfinite(expected) & np.isfinite(got)
    empty = int((~numbers.any(axis=-1)).sum())
    if empty:
        words = f"{empty} of {len(expected)} rows have no finite {what} to compare"
        return NothingTold(why=Why.EMPTY_ROWS, words=words)
    missing = numbers.size - int(numbers.sum())
    if 2 * missing > numbers.size:  # an agreement must cover most of the numbers
        words = f"{missing} of {numbers.size} numbers are not finite"
        return NothingTold(why=Why.NOT_FINITE, words=words)
    low, high = column_limits(expected, numbers)
    if high.max() - low.min() <= 2 * allowed:  # the number in the middle is within the limit of all
        words = f"every {what} is equal within the limit, so one number for all agrees"
        return NothingTold(why=Why.ONE_NUMBER, words=words)
    if rows_differ and len(expected) > 1 and (high - low).max() <= 2 * allowed:
        words = "each row is the same within the limit, so an engine that ignores its tokens agrees"
        return NothingTold(why=Why.SAME_ROWS, words=words)
    return None


def column_limits(
    values: F32, numbers: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the smallest and largest number of each column, row by row so that a large vocabulary
    needs no copy. numbers: True for the elements to use. A column without such elements gets the
    smallest number of all other columns."""
    low = np.full(values.shape[-1], np.inf)
    high = -low
    for row, known in zip(values, numbers, strict=True):
        np.minimum(low, row, out=low, where=known)
        np.maximum(high, row, out=high, where=known)
    some = numbers.any(axis=0)
    low[~some] = high[~some] = low[some].min()
    return low, high
