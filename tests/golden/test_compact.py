"""A matrix in compact form is checked as a whole: no wrong value escapes all parts."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32
from lockstep.golden.compact import (
    BLOCK,
    COLUMNS,
    TOP,
    Floor,
    HeldMatrix,
    compact_logits,
    seeded_columns,
)

ROWS, WIDTH = 3, 2000  # the last block is shorter than the others
MATRIX = np.random.default_rng(3).normal(size=(ROWS, WIDTH)).astype(np.float32)
SEEN = seeded_columns(1, "logits", WIDTH)
ALLOWED = {"values": 1e-4, "sums": 1e-3, "moments": 1e-1}
HELD = HeldMatrix(tensors=compact_logits(MATRIX, SEEN), columns=SEEN, allowed=ALLOWED)
# columns of the first row that are neither among its largest nor among the seeded ones
UNSEEN = [i for i in range(WIDTH) if i not in SEEN and i not in HELD.tensors["ids"][0]]


def wrong(change: Callable[[F32], object]) -> list[str]:
    """Return the parts of the form that show a change."""
    matrix = MATRIX.copy()
    change(matrix)
    return [part for part, _ in HELD.differences(matrix)]


def test_equal_matrix_and_matrix_within_the_bounds_do_not_differ() -> None:
    assert wrong(lambda m: None) == []
    assert wrong(lambda m: np.add(m, 5e-7, out=m)) == []
    assert HELD.share(MATRIX) == 0
    assert 0 < HELD.share(MATRIX + np.float32(5e-7)) < 1


def test_moved_largest_value_is_found() -> None:
    def moved(m: F32) -> None:
        best = int(m[1].argmax())
        m[1, [best, UNSEEN[0]]] = m[1, [UNSEEN[0], best]]

    assert {"top", "rest"} <= set(wrong(moved))


def test_single_large_value_is_found_anywhere() -> None:
    def spurious(m: F32) -> None:
        m[0, UNSEEN[7]] = 50

    assert "rest" in wrong(spurious)


def test_wrong_small_value_is_found_in_its_block() -> None:
    def nudged(m: F32) -> None:
        m[0, UNSEEN[-1]] -= 0.01

    assert "sums" in wrong(nudged)


def test_two_exchanged_values_show_in_the_moment_of_their_block() -> None:
    """The sum of both values is the same to the last bit or two."""
    row = MATRIX[0]
    first, second = next(
        (a, b)
        for a, b in pairwise(UNSEEN)
        if a // BLOCK == b // BLOCK and abs(row[a] - row[b]) > 0.5
    )

    def swapped(m: F32) -> None:
        m[0, [first, second]] = m[0, [second, first]]

    assert wrong(swapped) == ["moments"]


@pytest.mark.parametrize(
    "change",
    [
        lambda m: np.copyto(m, np.roll(m, 1, axis=1)),
        lambda m: np.copyto(m, np.roll(m, 1, axis=0)),
        lambda m: np.multiply(m, np.float32(1.001), out=m),
        lambda m: m[:, BLOCK : 2 * BLOCK].fill(0),
    ],
    ids=["columns off by one", "rows off by one", "scaled", "a block of zeros"],
)
def test_wholly_wrong_matrix_fails_in_many_parts(
    change: Callable[[F32], object],
) -> None:
    assert len(wrong(change)) >= 3


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_single_nan_is_found_anywhere(value: float) -> None:
    def spoiled(m: F32) -> None:
        m[2, UNSEEN[3]] = value

    assert {"sums", "moments"} <= set(wrong(spoiled))


def test_columns_are_ascending_and_spread_or_complete() -> None:
    assert (np.diff(SEEN) > 0).all()
    assert len(SEEN) == COLUMNS
    assert np.bincount(SEEN * 4 // WIDTH).tolist() == [COLUMNS // 4] * 4
    assert seeded_columns(1, "logits", 5).tolist() == [0, 1, 2, 3, 4]
    assert (seeded_columns(2, "logits", WIDTH) != SEEN).any()


def test_smaller_id_comes_first_among_equal_values() -> None:
    flat = np.zeros((1, 40), np.float32)
    flat[0, 30] = 1
    assert (
        compact_logits(flat, seeded_columns(1, "x", 40))["ids"][0].tolist()
        == [30, *range(30), 31][:TOP]
    )


def in_python(row: list[float]) -> tuple[list[float], list[float]]:
    """Compute the sums and moments as documented, in a loop as in C."""
    sums, moments = [], []
    for start in range(0, len(row), BLOCK):
        s = m = 0.0
        for place, x in enumerate(row[start : start + BLOCK]):
            s += x
            m += (place + 1) * x
        sums.append(s)
        moments.append(m)
    return sums, moments


def test_sums_match_a_plain_loop_bit_for_bit() -> None:
    for row, sums, moments in zip(
        MATRIX, HELD.tensors["sums"], HELD.tensors["moments"], strict=True
    ):
        assert in_python([float(x) for x in row]) == (sums.tolist(), moments.tolist())


def test_floor_is_the_largest_distance_of_all_runs() -> None:
    floor = Floor()
    for change in (1e-3, 2e-3, 1e-4):
        moved: NDArray[np.float32] = MATRIX.copy()
        moved[1, 5] += np.float32(change)
        floor.widen(MATRIX, moved)
    assert floor.value == pytest.approx(2e-3, rel=1e-3)
    assert floor.sums == pytest.approx(2e-3, rel=1e-3)
    assert floor.moments == pytest.approx(6 * 2e-3, rel=1e-3)
