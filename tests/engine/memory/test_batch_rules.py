"""Illegal batches are refused by the rule that they break."""

from collections.abc import Sequence

import pytest

from lockstep.engine.memory.batch_rules import refusal
from lockstep.engine.memory.ubatch import Entry

FULL = {0: (0, 3), 1: (0, 3), 2: (2, 3)}  # sequence -> smallest and largest position in memory
Rows = Sequence[tuple[int, int, Sequence[int]]]


def rule(rows: Rows) -> str | None:
    return refusal(
        [Entry(token, pos, frozenset(seqs)) for token, pos, seqs in rows],
        n_vocab=10,
        n_seq_max=5,
        pos_min=lambda seq: FULL.get(seq, (-1, -1))[0],
        pos_max=lambda seq: FULL.get(seq, (-1, -1))[1],
    )


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ([], "empty"),
        ([(10, 4, [0])], "token id"),
        ([(-1, 4, [0])], "token id"),
        ([(1, 4, [])], "no sequence"),
        ([(1, 0, [5])], "sequence id"),
        ([(1, 0, [-1])], "sequence id"),
        ([(1, -1, [3])], "negative position"),
        ([(1, 5, [0])], "not consecutive"),
        ([(1, 3, [0])], "not consecutive"),
        ([(1, 4, [0]), (1, 6, [0])], "gap"),
        ([(1, 0, [3]), (1, 2, [3])], "gap"),
        ([(1, 4, [0, 2])], "diverged"),
        ([(1, 0, [3, 4]), (1, 1, [3]), (1, 1, [4]), (1, 2, [3, 4])], None),
        ([(1, 4, [0, 1]), (1, 5, [0])], None),
        ([(1, 0, [3]), (1, 1, [3, 4]), (1, 0, [4])], "decreasing"),
        ([(1, 5, [0]), (1, 4, [0])], "decreasing"),
        ([(1, 7, [3]), (1, 8, [3])], None),
        ([(1, 4, [0]), (1, 4, [0])], None),
    ],
)
def test_a_batch_is_refused_by_the_first_rule_that_it_breaks(rows: Rows, name: str | None) -> None:
    assert rule(rows) == name


@pytest.mark.parametrize(
    "rows",
    [
        [(1, 0, [3, 4]), (1, 1, [3]), (1, 1, [4]), (1, 2, [3, 4])],
        [(1, 0, [4, 3]), (1, 1, [3]), (1, 1, [4])],
        [(1, 4, [0, 1]), (1, 5, [1]), (1, 5, [0])],
        [(1, 4, [0]), (1, 4, [1]), (1, 5, [0, 1])],
    ],
)
def test_sequences_may_split_and_rejoin(rows: Rows) -> None:
    assert rule(rows) is None
