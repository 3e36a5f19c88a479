"""The memory of models with layers of attention and layers of recurrent state.

Source: llama-memory-hybrid.cpp of llama-cpp-python 0.3.36, for contexts without snapshots of states
(`n_rs_seq` 0). Where llama.cpp's answers break the promises of llama.h, this memory keeps the
promises.
"""

from collections.abc import Mapping
from typing import Any

from lockstep.engine.memory.attention import Attention, Placed
from lockstep.engine.memory.base import LayerView, Pair
from lockstep.engine.memory.recurrent import Recurrent, States
from lockstep.engine.memory.store import NONE, Numbers
from lockstep.engine.memory.ubatch import Entries, split_equal


class Hybrid(Pair):
    """Memory with two parts. A sequence has the positions that both parts hold, or none."""

    def __init__(
        self,
        *,
        size: int,
        n_seq: int,
        unified: bool,
        numbers: Numbers = NONE,
        layers: Mapping[int, States] | None = None,
    ) -> None:
        """Make both parts. numbers: stored data of the attention layers; layers: shapes of the
        recurrent layers' states.
        """
        super().__init__(n_seq)
        self.attention = Attention(size=size, n_seq=n_seq, unified=unified, numbers=numbers)
        self.states = Recurrent(n_seq, layers)

    @property
    def both(self) -> tuple[Attention, Recurrent]:
        return self.attention, self.states

    def pos_min(self, seq: int) -> int:
        return self.common(seq)[0]

    def pos_max(self, seq: int) -> int:
        return self.common(seq)[1]

    def common(self, seq: int) -> tuple[int, int]:
        first = max(part.pos_min(seq) for part in self.both)
        last = min(part.pos_max(seq) for part in self.both)
        return (first, last) if first <= last else (-1, -1)

    def place(self, batch: Entries, n_ubatch: int) -> list[Placed] | None:
        """Split the batch equally and place it. Only cells can run out: each sequence has its own
        state.
        """
        ubatches = split_equal(batch, n_ubatch, sequential=not self.attention.unified)
        self.seen.ubatches += ubatches
        self.attention.seen = self.seen
        return self.attention.fit(batch, ubatches) if ubatches else None

    def apply(self, batch: Entries, placed: Placed) -> None:
        self.attention.apply(batch, placed)
        self.states.apply(batch, placed.ubatch)

    def views(self, batch: Entries, placed: Placed) -> Mapping[int, LayerView]:
        cells = self.attention.views(batch, placed)
        return {**cells, **self.states.views(batch, placed.ubatch)}

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        """Remove the positions from both parts. If the state cannot remove them, return False and
        change nothing.
        """
        return self.states.seq_rm(seq, p0, p1) and self.attention.seq_rm(seq, p0, p1)

    def load(self, seq: int, saved: Any) -> bool:
        self.attention.seen = self.seen
        cells, states = saved
        if self.attention.load(seq, cells):
            return self.states.load(seq, states)
        self.states.seq_rm(seq, -1, -1)
        return False
