"""Changes to the values of a tensor while a model is rewritten from file to file.

A change is a function. It receives whole decoded rows and the number of the first of these rows,
and returns as many rows. All changes are exact in float32, so that both engines read the intended
values.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32

HALF = np.uint64(63)  # shift that leaves the highest bit of a raw number
# arguments: (rows, columns), number of the first row; returns (rows, columns)
Change = Callable[[F32, int], F32]


def zero(rows: F32, start: int) -> F32:
    return np.zeros_like(rows)


def ones(rows: F32, start: int) -> F32:
    return np.ones_like(rows)


def far_below(rows: F32, start: int) -> F32:
    """Fill the rows with a value that is far below every score and that F16 can hold."""
    return np.full_like(rows, -(2.0**14))


def times(power: float) -> Change:
    """Return a change that multiplies by a power of two, so that nothing is rounded."""
    return lambda rows, start: (rows * np.float32(power)).astype(np.float32)


def only_columns(first: int, last: int) -> Change:
    def change(rows: F32, start: int) -> F32:
        kept = np.zeros_like(rows)
        kept[:, first:last] = rows[:, first:last]
        return kept

    return change


def reads_first(period: int = 0, *, key: int = 0) -> Change:
    """Return a change that makes each output the first input times a seeded number. The numbers
    have either sign, magnitudes from a quarter to 16, and all bits of a float32. period: the number
    of rows after which the numbers repeat, 1 for equal outputs, 0 for no repetition; key: the
    seed."""

    def change(rows: F32, start: int) -> F32:
        found, numbers = np.zeros_like(rows), start + np.arange(len(rows))
        found[:, 0] = factors(key, numbers % period if period else numbers)
        return found

    return change


def factors(key: int, numbers: NDArray[np.int64]) -> F32:
    raw = Philox(key=key).random_raw(2 * (int(numbers.max(initial=0)) + 1)).reshape(-1, 2)[numbers]
    shares = (raw >> np.uint64(40)).astype(np.float64) * 2.0**-24
    sizes = 2.0 ** (6 * shares[:, 0] - 2)
    return np.where(shares[:, 1] < 0.5, -sizes, sizes).astype(np.float32)


def in_rows(first: int, change: Change) -> Change:
    """Return a change that applies another change to the rows from `first` on, and leaves earlier
    rows unchanged."""

    def changed(rows: F32, start: int) -> F32:
        before = max(0, min(first - start, len(rows)))
        rest = change(rows[before:], max(0, start - first))
        return np.concatenate([rows[:before], rest])

    return changed


def zero_before(first: int) -> Change:
    """Return a change that sets the first rows of a matrix to zero, or the first elements of a
    vector (one row). first: the number of the first row or element that stays unchanged."""

    def change(rows: F32, start: int) -> F32:
        found = rows.copy()
        if len(rows) == 1 and start == 0:
            found[:, :first] = 0
        else:
            found[: max(0, first - start)] = 0
        return found

    return change


def one_hot(rows: F32, start: int) -> F32:
    """Return a matrix whose row i reads only input i. The inputs repeat if there are more rows."""
    return one_of(rows.shape[1])(rows, start)


def one_of(n: int) -> Change:
    """Return a change after which each row of a matrix reads one of the first n inputs. An engine
    that loses the end of a row loses none of these inputs."""

    def change(rows: F32, start: int) -> F32:
        found, at = np.zeros_like(rows), np.arange(len(rows))
        found[at, (start + at) % n] = 1
        return found

    return change


def dealt_out(n_rows: int) -> Change:
    """Return a change that spreads all inputs over `n_rows` rows, so that each row reads every
    `n_rows`th input."""

    def change(rows: F32, start: int) -> F32:
        n = rows.shape[1]
        if n <= n_rows:
            return one_hot(rows, start)
        away = np.arange(n)[None, :] - (start + np.arange(len(rows)))[:, None]
        found: F32 = (away % n_rows == 0).astype(np.float32)
        return found

    return change


def signs(size: float) -> Change:
    """Return a change to seeded signs times `size`. The first sign of each row is positive, and
    half of all signs are negative. A norm leaves such a row as it is, even if it subtracts the
    mean."""

    def change(rows: F32, start: int) -> F32:
        found = [size * draw_balanced(start + i, rows.shape[1]) for i in range(len(rows))]
        return np.stack(found).astype(np.float32)

    return change


def draw_balanced(key: int, n: int) -> F32:
    half = -(-n // 2)
    found = np.where(Philox(key=key).random_raw(half) >> np.uint64(63), 1, -1)
    found[0] = 1
    return np.concatenate([found, -found])[:n].astype(np.float32)


def constant(value: float) -> Change:
    return lambda rows, start: np.full_like(rows, value)


def in_turn(values: Sequence[float]) -> Change:
    """Return a change that fills the rows with these values, repeated or cut to fit."""
    return lambda rows, start: np.resize(np.asarray(values, np.float32), rows.shape)


def sparse_signs(size: float, *, centred: bool) -> Change:
    """Return a change to sparse seeded rows. centred: True to make half of each row positive and
    half zero. Otherwise a quarter or a sixteenth of each row are signs, and the other elements are
    zero."""

    def row(number: int, n: int) -> F32:
        found, every = np.zeros(n, np.float32), 4 << number % 2 * 2
        found[::every] = np.where(Philox(key=number).random_raw(-(-n // every)) >> HALF, 1, -1)
        found[0] = 1
        own = draw_balanced(number, n) + 1 if centred else found
        return np.float32(size * 2.0 ** (number % 3)) * own

    def change(rows: F32, start: int) -> F32:
        return np.stack([row(start + i, rows.shape[1]) for i in range(len(rows))])

    return change


def powers(rows: F32, start: int) -> F32:
    """Return powers of two of either sign, from a quarter to four. Every type can represent
    them."""
    raw = [Philox(key=start + i).random_raw(rows.shape[1]) for i in range(len(rows))]
    bits = (np.stack(raw) >> np.uint64(60)).astype(np.int64)
    return np.ldexp(np.where(bits % 2, 1.0, -1.0), bits // 2 % 5 - 2).astype(np.float32)


def same_row(rows: F32, start: int) -> F32:
    """Return the same random row for every token, with values between -1 and 1."""
    raw = Philox(key=7).random_raw(rows.shape[1]) >> np.uint64(40)
    row = (raw.astype(np.float32) * np.float32(2.0**-23) - 1).astype(np.float32)
    return np.broadcast_to(row, rows.shape).copy()
