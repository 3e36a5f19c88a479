"""Ubatches as llama.cpp forms them: groups of a batch's tokens that are computed together, in
order.

Source: `llama_batch_allocr` in llama-batch.cpp of llama-cpp-python 0.3.36. Here a token may belong
to several sequences; `engine.batch.Batch` is the plain case that our graphs compute.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

SeqSet = frozenset[int]


@dataclass(frozen=True, slots=True)
class Entry:
    """Token of a batch and its place."""

    token: int
    pos: int
    seqs: SeqSet
    output: bool = True  # True: its logits are requested


Entries = Sequence[Entry]


@dataclass(frozen=True, slots=True)
class Ubatch:
    """Tokens computed together. `order`: indices into the batch. If `equal`, all sets of sequences
    have the same number of tokens, one set after the other; else `n_seqs` counts every token as a
    set.
    """

    order: tuple[int, ...]
    n_seqs: int
    equal: bool

    @property
    def n_seq_tokens(self) -> int:
        return len(self.order) // self.n_seqs


class Splitter:
    """A batch that is being split: each method forms one ubatch, or None at the end."""

    def __init__(self, batch: Entries) -> None:
        self.batch = batch
        self.used = [False] * len(batch)
        self.members: dict[SeqSet, list[int]] = {}  # by set of sequences: the tokens in order
        for at, entry in enumerate(batch):
            self.members.setdefault(entry.seqs, []).append(at)
        self.coupled = any(len(entry.seqs) > 1 for entry in batch)

    def simple(self, n_ubatch: int) -> Ubatch | None:
        """Return the next tokens in the order of the batch, for any sequences."""
        left = self.unused_tokens()[:n_ubatch]
        return self.take_tokens(left, len(left), equal=False) if left else None

    def equal(self, n_ubatch: int, *, sequential: bool) -> Ubatch | None:
        """Take the same number of tokens from each of several sets that have no sequence in common.

        `sequential`: take only sets with consecutive ids. If any set has several sequences, return
        None.
        """
        if sequential and self.coupled:
            return None
        sets = self.sets_of_next(n_ubatch, sequential)
        if not sets:
            return None
        left = [[at for at in self.members[s] if not self.used[at]] for s in sets]
        # one token of each set even if they exceed the ubatch, then as many rounds as fit
        rounds = min(min(map(len, left)), max(1, n_ubatch // len(sets)))
        chosen = [row[:rounds] for row in left]
        return self.take_tokens([at for row in chosen for at in row], len(chosen), equal=True)

    def sets_of_next(self, n_ubatch: int, sequential: bool) -> list[SeqSet]:
        """Return the sequence sets of the next ubatch, in the order of their tokens."""
        sets: list[SeqSet] = []
        for at in self.unused_tokens():
            mine = self.batch[at].seqs
            if any(mine & other for other in sets):
                continue
            if sequential and sets and min(mine) != min(sets[-1]) + 1:
                continue
            if len(sets) == n_ubatch:
                break
            sets.append(mine)
        return sets

    def unused_tokens(self) -> list[int]:
        return [at for at, used in enumerate(self.used) if not used]

    def take_tokens(self, order: Sequence[int], n_seqs: int, *, equal: bool) -> Ubatch:
        for at in order:
            self.used[at] = True
        return Ubatch(tuple(order), n_seqs, equal)


def split(form: Callable[[], Ubatch | None]) -> list[Ubatch]:
    """Return the ubatches that `form` returns, until it returns None."""
    ubatches = []
    while (ubatch := form()) is not None:
        ubatches.append(ubatch)
    return ubatches


def split_simple(batch: Entries, n_ubatch: int) -> list[Ubatch]:
    splitter = Splitter(batch)
    return split(lambda: splitter.simple(n_ubatch))


def split_equal(batch: Entries, n_ubatch: int, *, sequential: bool) -> list[Ubatch]:
    """Split the batch equally; return an empty list if that is impossible."""
    splitter = Splitter(batch)
    return split(lambda: splitter.equal(n_ubatch, sequential=sequential))


def outputs_in_order(batch: Entries, ubatches: Sequence[Ubatch]) -> list[int]:
    """Return the tokens with outputs in the order of computation. Users see outputs in the order of
    the batch.
    """
    return [at for ubatch in ubatches for at in ubatch.order if batch[at].output]
