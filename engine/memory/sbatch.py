"""The older sequence-aware batch (`llama_sbatch`), which llama.cpp had until mid-2025.

Tokens are sorted into groups of one set of sequences each, and ubatches are taken from the last
groups of the list. Attention models did not sort: all tokens were one group without sequences.

Source: llama-batch.cpp as of llama-cpp-python 0.3.8. llama.cpp's sort was unstable; here ties keep
their order, as in the worked examples of the tests.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.engine.memory.ubatch import Ubatch, split


@dataclass(frozen=True, slots=True)
class SbatchToken:
    """A token's position and sequences. `seqs` is compared in the order given."""

    pos: int
    seqs: tuple[int, ...]


@dataclass(slots=True)
class Group:
    """A run of the sorted ids with the same sequences; a simple split has one group without
    sequences.
    """

    seqs: tuple[int, ...]
    offset: int
    length: int


class Sbatch:
    def __init__(self, tokens: Sequence[SbatchToken], *, simple: bool) -> None:
        self.ids = list(range(len(tokens)))
        self.groups = [Group((), 0, len(tokens))]
        self.simple = simple
        if not simple:
            # tokens with most sequences first, then by sequences, then by position
            self.ids.sort(key=lambda i: (-len(tokens[i].seqs), tokens[i].seqs, tokens[i].pos))
            self.groups = runs([tokens[i].seqs for i in self.ids])
            # shared prompts move to the end, and shorter ones behind longer ones; the last is taken
            # first
            self.groups.sort(key=lambda g: (len(g.seqs), -g.length))

    @property
    def left(self) -> int:
        return sum(group.length for group in self.groups)

    def next_simple(self, n_ubatch: int) -> Ubatch | None:
        """Return the next tokens in the order of the batch."""
        if not self.simple:
            raise ValueError("a sorted batch has no simple split")
        order = self.take(self.groups[0], min(n_ubatch, self.left))
        return Ubatch(order, len(order), equal=False) if order else None

    def next_seq(self, n_ubatch: int) -> Ubatch | None:
        """Return as many tokens of the last group as fit."""
        self.drop_empty()
        if not self.groups:
            return None
        last = self.groups[-1]
        return Ubatch(self.take(last, min(n_ubatch, last.length)), 1, equal=True)

    def next_equal(self, n_ubatch: int) -> Ubatch | None:
        """Take as many tokens from each of the last groups as the shortest of them has; a shared
        prompt gets its own ubatch.
        """
        self.drop_empty()
        if not self.groups:
            return None
        n_ubatch = min(n_ubatch, self.left)
        length = min(self.groups[-1].length, n_ubatch)
        order: list[int] = []
        n_seqs = 0
        for group in reversed(self.groups):
            order += self.take(group, length)
            n_seqs += 1
            if len(group.seqs) > 1 or length + len(order) > n_ubatch:
                break
        return Ubatch(tuple(order), n_seqs, equal=True)

    def take(self, group: Group, length: int) -> tuple[int, ...]:
        taken = self.ids[group.offset : group.offset + length]
        group.offset += length
        group.length -= length
        return tuple(taken)

    def drop_empty(self) -> None:
        if self.simple:
            raise ValueError("an unsorted batch can only be split simply")
        while self.groups and not self.groups[-1].length:
            self.groups.pop()


def runs(sets: Sequence[tuple[int, ...]]) -> list[Group]:
    groups: list[Group] = []
    for at, seqs in enumerate(sets):
        if groups and groups[-1].seqs == seqs:
            groups[-1].length += 1
        else:
            groups.append(Group(seqs, at, 1))
    return groups


def sbatch_simple(tokens: Sequence[SbatchToken], n_ubatch: int) -> list[Ubatch]:
    batch = Sbatch(tokens, simple=True)
    return split(lambda: batch.next_simple(n_ubatch))


def sbatch_equal(tokens: Sequence[SbatchToken], n_ubatch: int) -> list[Ubatch]:
    batch = Sbatch(tokens, simple=False)
    return split(lambda: batch.next_equal(n_ubatch))


def sbatch_seq(tokens: Sequence[SbatchToken], n_ubatch: int) -> list[Ubatch]:
    batch = Sbatch(tokens, simple=False)
    return split(lambda: batch.next_seq(n_ubatch))
