"""The older sequence-aware batch: worked examples, and properties of every split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.engine.memory.sbatch import (
    Group,
    Sbatch,
    SbatchToken,
    sbatch_equal,
    sbatch_seq,
    sbatch_simple,
)

# "Yesterday was Friday" and "Yesterday was Monday"; the first two words are shared
SHARED, FIRST, SECOND = (1, 0), (0,), (1,)
PROMPTS = [
    SbatchToken(pos, seqs)
    for pos, seqs in [(0, SHARED), (1, SHARED), (2, FIRST), (0, SHARED), (1, SHARED), (2, SECOND)]
]


def lengths(n_tokens: int, n_ubatch: int) -> list[int]:
    tokens = [SbatchToken(pos, (0,)) for pos in range(n_tokens)]
    return [len(ubatch.order) for ubatch in sbatch_simple(tokens, n_ubatch)]


def test_shared_tokens_are_sorted_to_the_front() -> None:
    assert Sbatch(PROMPTS, simple=False).ids == [0, 3, 1, 4, 2, 5]


def test_groups_have_offset_and_length_and_shared_groups_are_last() -> None:
    groups = Sbatch(PROMPTS, simple=False).groups
    assert groups == [Group(FIRST, 4, 1), Group(SECOND, 5, 1), Group(SHARED, 0, 4)]


def test_shared_tokens_form_their_own_ubatch() -> None:
    first, second = sbatch_equal(PROMPTS, 32)
    assert (first.order, first.n_seqs, first.n_seq_tokens, first.equal) == (
        (0, 3, 1, 4),
        1,
        4,
        True,
    )
    assert (second.order, second.n_seqs) == ((5, 2), 2)


def test_worked_examples_of_13_and_75_tokens_are_reproduced() -> None:
    assert lengths(13, 4) == [4, 4, 4, 1]
    assert lengths(75, 32) == [32, 32, 11]
    assert lengths(73, 32) == [32, 32, 9]


def test_a_simple_split_counts_every_token_as_a_sequence() -> None:
    tokens = [SbatchToken(pos, (0,)) for pos in range(73)]
    batch = Sbatch(tokens, simple=True)
    first = batch.next_simple(32)
    assert first is not None
    assert (first.n_seqs, first.n_seq_tokens, first.equal) == (32, 1, False)
    assert (batch.left, batch.groups) == (41, [Group((), 32, 41)])
    batch.next_simple(32)
    assert (batch.left, batch.groups) == (9, [Group((), 64, 9)])


def test_sequences_of_unequal_length_advance_by_the_shortest() -> None:
    tokens = [SbatchToken(pos, (0,)) for pos in range(5)] + [SbatchToken(p, (1,)) for p in (0, 1)]
    assert [u.order for u in sbatch_equal(tokens, 8)] == [(5, 6, 0, 1), (2, 3, 4)]
    assert [u.order for u in sbatch_seq(tokens, 2)] == [(5, 6), (0, 1), (2, 3), (4,)]


def test_simple_and_sorted_groups_are_not_mixed() -> None:
    with pytest.raises(ValueError, match="simpl"):
        Sbatch(PROMPTS, simple=False).next_simple(4)
    with pytest.raises(ValueError, match="simpl"):
        Sbatch(PROMPTS, simple=True).next_equal(4)


BATCHES = st.lists(st.integers(0, 3), min_size=1, max_size=24)


@given(BATCHES, st.integers(1, 9))
def test_every_token_is_computed_once_in_sequence_order(seqs: list[int], n_ubatch: int) -> None:
    places = [SbatchToken(seqs[:at].count(seq), (seq,)) for at, seq in enumerate(seqs)]
    for form in (sbatch_simple, sbatch_equal, sbatch_seq):
        ubatches = form(places, n_ubatch)
        order = [at for ubatch in ubatches for at in ubatch.order]
        assert sorted(order) == list(range(len(seqs)))
        assert all(len(u.order) <= n_ubatch for u in ubatches)
        for seq in range(4):
            mine = [places[at].pos for at in order if seqs[at] == seq]
            assert mine == sorted(mine)
