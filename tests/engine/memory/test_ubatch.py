"""Splits of a batch: llama.cpp's own examples, and properties of every split."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.engine.memory.ubatch import (
    Entry,
    Ubatch,
    outputs_in_order,
    split_equal,
    split_simple,
)


def batch(*rows: tuple[int, Sequence[int]]) -> list[Entry]:
    """Return rows of position and sequences."""
    return [Entry(at, pos, frozenset(seqs)) for at, (pos, seqs) in enumerate(rows)]


def orders(ubatches: Sequence[Ubatch]) -> list[tuple[int, ...]]:
    return [ubatch.order for ubatch in ubatches]


TWO = batch((0, [0]), (0, [1]), (1, [0]), (1, [1]), (2, [1]), (0, [3]))
FORKED = batch((0, [0, 1]), (1, [0, 1]), (2, [0]), (2, [1]), (3, [1]))


def test_simple_split_takes_tokens_in_order() -> None:
    assert orders(split_simple(TWO, 4)) == [(0, 1, 2, 3), (4, 5)]
    assert [u.n_seqs for u in split_simple(TWO, 4)] == [4, 2]


def test_equal_split_takes_as_many_tokens_from_each_sequence() -> None:
    ubatches = split_equal(TWO, 16, sequential=False)
    assert orders(ubatches) == [(0, 1, 5), (2, 3), (4,)]
    assert [(u.n_seqs, u.n_seq_tokens) for u in ubatches] == [(3, 1), (2, 1), (1, 1)]


def test_sequential_split_takes_only_consecutive_ids() -> None:
    assert orders(split_equal(TWO, 16, sequential=True)) == [(0, 2, 1, 3), (4,), (5,)]


def test_sequential_split_refuses_shared_tokens() -> None:
    assert split_equal(FORKED, 16, sequential=True) == []
    assert orders(split_equal(FORKED, 16, sequential=False)) == [(0, 1), (2, 3), (4,)]


def test_outputs_come_in_the_order_of_computation() -> None:
    assert outputs_in_order(TWO, split_equal(TWO, 16, sequential=True)) == [0, 2, 1, 3, 4, 5]


FORMS: list[Callable[[list[Entry], int], list[Ubatch]]] = [
    split_simple,
    lambda b, n: split_equal(b, n, sequential=False),
    lambda b, n: split_equal(b, n, sequential=True),
]


@pytest.mark.parametrize("form", range(len(FORMS)))
@given(seqs=st.lists(st.integers(0, 3), min_size=1, max_size=24), n_ubatch=st.integers(1, 9))
def test_every_token_is_computed_once_in_sequence_order(
    form: int, seqs: list[int], n_ubatch: int
) -> None:
    entries = batch(*((seqs[:at].count(seq), [seq]) for at, seq in enumerate(seqs)))
    order = [at for ubatch in FORMS[form](entries, n_ubatch) for at in ubatch.order]
    assert sorted(order) == list(range(len(seqs)))
    for seq in range(4):
        mine = [entries[at].pos for at in order if seqs[at] == seq]
        assert mine == sorted(mine)
