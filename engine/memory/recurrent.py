"""Recurrent state: one state per sequence, shared until one of the sequences continues.

Source: llama-memory-recurrent.cpp of llama-cpp-python 0.3.36. Its layout of states is not
observable and not repeated here. Where llama.cpp's answers break the promises of llama.h, this
memory keeps the promises.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.memory.base import LayerView, Memory
from lockstep.engine.memory.cells import span
from lockstep.engine.memory.ubatch import Entries, Ubatch, split_equal
from lockstep.engine.quants.base import F32


@dataclass(frozen=True)
class States:
    """Shapes of the arrays that a recurrent layer keeps for a sequence; the arrays start as
    zeros."""

    shapes: tuple[tuple[int, ...], ...]


@dataclass
class State:
    """State of a sequence after its last position.

    Sequences share a state by identity. Computed arrays replace older arrays; no array changes in
    place.
    """

    pos: int
    numbers: dict[int, tuple[F32, ...]] = field(default_factory=dict)

    def copy(self) -> "State":
        return State(self.pos, dict(self.numbers))


class Recurrent(Memory):
    def __init__(self, n_seq: int, layers: Mapping[int, States] | None = None) -> None:
        super().__init__(n_seq)
        self.layers = layers or {}
        self.states: dict[int, State] = {}

    def pos_min(self, seq: int) -> int:
        return self.pos_max(seq)

    def pos_max(self, seq: int) -> int:
        return self.states[seq].pos if seq in self.states else -1

    def place(self, batch: Entries, n_ubatch: int) -> list[Ubatch] | None:
        """Give every sequence its own state; tokens shared by sequences cannot be placed.

        For embeddings, llama.cpp splits by sequence, which gives the same numbers.
        """
        ubatches = split_equal(batch, n_ubatch, sequential=True)
        self.seen.ubatches += ubatches
        return ubatches or None

    def apply(self, batch: Entries, placed: Ubatch) -> None:
        """Continue each set of sequences from the state of the set's first sequence."""
        for at in last_of_sets(placed):
            entry = batch[at]
            before = self.states.get(min(entry.seqs), self.empty())
            self.states |= dict.fromkeys(entry.seqs, State(entry.pos, dict(before.numbers)))

    def empty(self) -> State:
        return State(
            -1,
            {
                layer: tuple(np.zeros(shape, np.float32) for shape in kept.shapes)
                for layer, kept in self.layers.items()
            },
        )

    def views(self, batch: Entries, placed: Ubatch) -> Mapping[int, LayerView]:
        states = [self.states[min(batch[at].seqs)] for at in last_of_sets(placed)]
        return {layer: StateView(states, layer) for layer in self.layers}

    def clear(self) -> None:
        self.states.clear()

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        """Remove a whole sequence. Return False for a part of a sequence, which a state cannot
        forget.
        """
        p0, p1 = span(p0, p1)
        chosen = list(self.states) if seq < 0 else [seq]
        touched = [s for s in chosen if s in self.states and p0 <= self.states[s].pos and p0 < p1]
        if any(p0 > 0 or p1 <= self.states[s].pos for s in touched):
            return False
        for s in touched:
            del self.states[s]
        return True

    def seq_cp(self, source: int, to: int, p0: int, p1: int) -> None:
        """Copy the whole sequence, whatever the range."""
        if source == to:
            return
        self.states.pop(to, None)
        if source in self.states:
            self.states[to] = self.states[source]

    def seq_keep(self, seq: int) -> None:
        self.states = {s: state for s, state in self.states.items() if s == seq}

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Move a sequence. A shared state moves for all its sequences."""
        if (state := self.at(seq, p0, p1)) is not None:
            state.pos += delta
            if state.pos < 0:  # a negative position removes the state, as it removes cells
                self.states = {s: one for s, one in self.states.items() if one is not state}

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        if (state := self.at(seq, p0, p1)) is not None:
            state.pos = int(state.pos / d)

    def at(self, seq: int, p0: int, p1: int) -> State | None:
        p0, p1 = span(p0, p1)
        state = self.states.get(seq)
        return state if state is not None and p0 <= state.pos < p1 else None

    def save(self, seq: int) -> Any:
        """Return the state of one sequence, or all states with the sequences that share them."""
        if seq >= 0:
            return self.states[seq].copy() if seq in self.states else None
        return [
            (state.copy(), [s for s, other in self.states.items() if other is state])
            for state in {id(state): state for state in self.states.values()}.values()
        ]

    def load(self, seq: int, saved: Any) -> bool:
        if seq >= 0:
            saved = [] if saved is None else [(saved, [seq])]
            self.states.pop(seq, None)
        else:
            self.states = {}
        for state, seqs in saved:
            self.states |= dict.fromkeys(seqs, state.copy())
        return True


class StateView(LayerView):
    """The states of an ubatch's sets of sequences, in their order, as one array for each shape."""

    def __init__(self, states: Sequence[State], layer: int) -> None:
        self.states, self.layer = states, layer

    def read(self) -> tuple[NDArray[Any], ...]:
        """Return the states after the last ubatch: (sets, ...) each."""
        return tuple(map(np.stack, zip(*(s.numbers[self.layer] for s in self.states), strict=True)))

    def store(self, *numbers: F32) -> None:
        for i, state in enumerate(self.states):
            state.numbers[self.layer] = tuple(array[i] for array in numbers)


def last_of_sets(ubatch: Ubatch) -> tuple[int, ...]:
    """Return the last token of each set of sequences."""
    n = ubatch.n_seq_tokens
    return ubatch.order[n - 1 :: n]
