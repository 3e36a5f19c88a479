"""Recurrent state as a machine: one state per sequence, shared until one of its owners goes on.

Source: llama-memory-recurrent.cpp of llama-cpp-python 0.3.36. How it lays out its states is not
observable and not repeated here. Where its answers break the promises of llama.h, this keeps them.
"""

from dataclasses import dataclass
from typing import Any

from engine.cells import span
from engine.memory import Memory
from engine.ubatch import Entries, Ubatch, split_equal


@dataclass
class State:
    """What is left of a sequence after its last position. Sequences share one by identity."""

    pos: int


class Recurrent(Memory):
    def __init__(self, n_seq: int) -> None:
        super().__init__(n_seq)
        self.states: dict[int, State] = {}

    def pos_min(self, seq: int) -> int:
        return self.pos_max(seq)

    def pos_max(self, seq: int) -> int:
        return self.states[seq].pos if seq in self.states else -1

    def place(self, batch: Entries, n_ubatch: int) -> list[Ubatch] | None:
        """A state of its own for every sequence that goes on; shared tokens cannot be placed."""
        ubatches = split_equal(batch, n_ubatch, sequential=True)
        self.seen.ubatches += ubatches
        return ubatches or None

    def apply(self, batch: Entries, placed: Ubatch) -> None:
        for at in placed.order:
            self.states |= dict.fromkeys(batch[at].seqs, State(batch[at].pos))

    def clear(self) -> None:
        self.states.clear()

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        """All of a sequence or nothing of it: a state cannot forget a part."""
        p0, p1 = span(p0, p1)
        chosen = list(self.states) if seq < 0 else [seq]
        touched = [s for s in chosen if s in self.states and p0 <= self.states[s].pos and p0 < p1]
        if any(p0 > 0 or p1 <= self.states[s].pos for s in touched):
            return False
        for s in touched:
            del self.states[s]
        return True

    def seq_cp(self, source: int, to: int, p0: int, p1: int) -> None:
        """Whole, whatever the range."""
        if source == to:
            return
        self.states.pop(to, None)
        if source in self.states:
            self.states[to] = self.states[source]

    def seq_keep(self, seq: int) -> None:
        self.states = {s: state for s, state in self.states.items() if s == seq}

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Moves a shared state for all its sequences."""
        if (state := self.at(seq, p0, p1)) is not None:
            state.pos += delta
            if state.pos < 0:  # as cells do, it leaves
                self.states = {s: one for s, one in self.states.items() if one is not state}

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        if (state := self.at(seq, p0, p1)) is not None:
            state.pos = int(state.pos / d)

    def at(self, seq: int, p0: int, p1: int) -> State | None:
        p0, p1 = span(p0, p1)
        state = self.states.get(seq)
        return state if state is not None and p0 <= state.pos < p1 else None

    def save(self, seq: int) -> Any:
        """Positions of one sequence, or of all, with who shares them."""
        if seq >= 0:
            return self.pos_max(seq)
        return [
            (state.pos, [s for s, other in self.states.items() if other is state])
            for state in {id(state): state for state in self.states.values()}.values()
        ]

    def load(self, seq: int, saved: Any) -> bool:
        if seq >= 0:
            self.states.pop(seq, None)
            if saved >= 0:
                self.states[seq] = State(saved)
            return True
        self.states = {}
        for pos, seqs in saved:
            state = State(pos)
            self.states.update(dict.fromkeys(seqs, state))
        return True
