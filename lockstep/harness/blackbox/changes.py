"""What is done to the values of a tensor on its way from file to file.

A change is given whole rows, decoded, and the number of the first of them; it returns as many. All
of them are exact in float32, so that both engines read the very values that were meant.
"""

from collections.abc import Callable

import numpy as np
from numpy.random import Philox

from lockstep.engine.quants.base import F32

Change = Callable[[F32, int], F32]  # (rows, columns), the first row's number -> (rows, columns)


def zero(rows: F32, start: int) -> F32:
    return np.zeros_like(rows)


def ones(rows: F32, start: int) -> F32:
    return np.ones_like(rows)


def far_below(rows: F32, start: int) -> F32:
    """What no score is, and a half holds."""
    return np.full_like(rows, -(2.0**14))


def times(power: float) -> Change:
    """power: of two, so that nothing is rounded."""
    return lambda rows, start: (rows * np.float32(power)).astype(np.float32)


def only_columns(first: int, last: int) -> Change:
    def change(rows: F32, start: int) -> F32:
        kept = np.zeros_like(rows)
        kept[:, first:last] = rows[:, first:last]
        return kept

    return change


def reads_first(value: float) -> Change:
    """A matrix whose every output is so many times the first of its inputs."""

    def change(rows: F32, start: int) -> F32:
        found = np.zeros_like(rows)
        found[:, 0] = value
        return found

    return change


def one_hot(rows: F32, start: int) -> F32:
    """Each row reads one input, in turn."""
    found = np.zeros_like(rows)
    found[np.arange(len(rows)), (start + np.arange(len(rows))) % rows.shape[1]] = 1
    return found


def signs(size: float) -> Change:
    """Seeded signs, the first of each row positive: a norm of such a row is the row."""

    def change(rows: F32, start: int) -> F32:
        n = rows.shape[1]
        bits = np.stack([Philox(key=start + i).random_raw(n) for i in range(len(rows))])
        found = np.where(bits >> np.uint64(63), size, -size).astype(np.float32)
        found[:, 0] = size
        return found

    return change


def same_row(rows: F32, start: int) -> F32:
    """Seeded, of about the size of what was there; the same for every token."""
    raw = Philox(key=7).random_raw(rows.shape[1]) >> np.uint64(40)
    row = (raw.astype(np.float32) * np.float32(2.0**-23) - 1).astype(np.float32)
    return np.broadcast_to(row, rows.shape).copy()
