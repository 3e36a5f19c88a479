"""The contract of a memory: positions of sequences, and the data that a graph reads and writes.

Each memory follows llama.cpp (llama-memory.h of llama-cpp-python 0.3.36) except where that breaks
the promises of llama.h. Without layers, a memory keeps only positions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.memory.ubatch import Entries, Ubatch
from lockstep.engine.quants.base import F32


@dataclass
class SeenCells:
    """Record of one call: every ubatch formed and, if `watched`, the cells looked at.

    Cells are recorded only on request, because recording takes longer than placing a batch.
    """

    watched: bool = False
    ubatches: list[Ubatch] = field(default_factory=list)
    slots: list[list[Any]] = field(default_factory=list)


class LayerView:
    """View of one layer for the graph of one ubatch that is already in the memory."""

    def store(self, *numbers: F32) -> None:
        raise NotImplementedError

    def read(self) -> tuple[NDArray[Any], ...]:
        raise NotImplementedError

    def hadamard_sizes(self) -> tuple[int, int]:
        """Return the sizes of the Hadamard matrices by which stored keys and values are multiplied;
        0: no matrix.
        """
        return 0, 0

    def visible(self, window: int) -> NDArray[np.bool_]:
        """Return a mask of the read cells that each token may look at: (tokens, cells).

        window: number of positions that a token sees, its own included; 0: all positions up to its
        own.
        """
        raise NotImplementedError


class Memory:
    """Base of memories, which keeps nothing. Position -1: the sequence is empty."""

    def __init__(self, n_seq: int) -> None:
        self.n_seq = n_seq
        self.seen = SeenCells()

    def pos_min(self, seq: int) -> int:
        return -1

    def pos_max(self, seq: int) -> int:
        return -1

    def settle(self) -> None:
        """Carry out postponed operations before a batch is placed."""

    def place(self, batch: Entries, n_ubatch: int) -> list[Any] | None:
        """Return ubatches with their places, in the order to apply them; None if there is no
        room."""
        raise NotImplementedError

    def apply(self, batch: Entries, placed: Any) -> None:
        """Put the tokens of an ubatch into memory."""

    def views(self, batch: Entries, placed: Any) -> Mapping[int, LayerView]:
        """Return the view of every layer that stores something, for the ubatch applied last."""
        raise NotImplementedError

    def clear(self) -> None:
        pass

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        """Remove positions. Return False if a part of a sequence cannot be removed; whole sequences
        always can."""
        return True

    def seq_cp(self, source: int, to: int, p0: int, p1: int) -> None:
        pass

    def seq_keep(self, seq: int) -> None:
        pass

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        pass

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        pass

    def save(self, seq: int) -> Any:
        """Return the state of one sequence, or of everything (-1), for `load`."""

    def load(self, seq: int, saved: Any) -> bool:
        """Replace the sequence, or everything, by the saved state. If there is no room, return
        False and leave nothing.
        """
        return True


class Pair(Memory):
    """Two memories with the same sequences; every operation applies to both."""

    @property
    def both(self) -> tuple[Memory, Memory]:
        raise NotImplementedError

    def settle(self) -> None:
        for part in self.both:
            part.settle()

    def clear(self) -> None:
        for part in self.both:
            part.clear()

    def seq_cp(self, source: int, to: int, p0: int, p1: int) -> None:
        for part in self.both:
            part.seq_cp(source, to, p0, p1)

    def seq_keep(self, seq: int) -> None:
        for part in self.both:
            part.seq_keep(seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        for part in self.both:
            part.seq_add(seq, p0, p1, delta)

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        for part in self.both:
            part.seq_div(seq, p0, p1, d)

    def save(self, seq: int) -> tuple[Any, Any]:
        first, second = self.both
        return first.save(seq), second.save(seq)
