"""The memory of models with full-attention and sliding-window layers: two caches for the
same sequences.

Source: llama-kv-cache-iswa.cpp of llama-cpp-python 0.3.36.
"""

from collections.abc import Mapping, Sequence

from lockstep.engine.memory.attention import Attention, Placed, SavedCells
from lockstep.engine.memory.base import LayerView, Pair
from lockstep.engine.memory.store import NONE, Numbers
from lockstep.engine.memory.ubatch import Entries, Ubatch, split_equal, split_simple


class Window(Pair):
    """One cache for layers that see all tokens, and one for layers with a window.

    n_ubatch: None if the second cache is as large as the first (`swa_full`).
    """

    def __init__(
        self,
        *,
        size: int,
        n_seq: int,
        unified: bool,
        window: int,
        n_ubatch: int | None,
        numbers: Numbers = NONE,
    ) -> None:
        super().__init__(n_seq)
        small = size
        if n_ubatch is not None:
            small = pad_window(min(size, window * (n_seq if unified else 1) + n_ubatch))
        self.unified = unified
        layers = numbers.layers.items()
        full = numbers.of({layer: kept for layer, kept in layers if not kept.window})
        near = numbers.of({layer: kept for layer, kept in layers if kept.window})
        self.full = Attention(size=size, n_seq=n_seq, unified=unified, numbers=full)
        self.near = Attention(size=small, n_seq=n_seq, unified=unified, window=window, numbers=near)

    @property
    def both(self) -> tuple[Attention, Attention]:
        return self.full, self.near

    def pos_min(self, seq: int) -> int:
        return self.near.pos_min(seq)

    def pos_max(self, seq: int) -> int:
        return self.near.pos_max(seq)

    def place(self, batch: Entries, n_ubatch: int) -> list[tuple[Placed, Placed]] | None:
        """Split the batch in its own order and place it (unified only); if that fails, split it
        equally."""
        for part in self.both:
            part.seen = self.seen
        if self.unified:
            placed = self.fit(batch, split_simple(batch, n_ubatch))
            if placed is not None:
                return placed
        ubatches = split_equal(batch, n_ubatch, sequential=not self.unified)
        return self.fit(batch, ubatches) if ubatches else None

    def fit(self, batch: Entries, ubatches: Sequence[Ubatch]) -> list[tuple[Placed, Placed]] | None:
        self.seen.ubatches += ubatches
        full = self.full.fit(batch, ubatches)
        near = self.near.fit(batch, ubatches) if full is not None else None
        return None if full is None or near is None else list(zip(full, near, strict=True))

    def apply(self, batch: Entries, placed: tuple[Placed, Placed]) -> None:
        for part, one in zip(self.both, placed, strict=True):
            part.apply(batch, one)

    def views(self, batch: Entries, placed: tuple[Placed, Placed]) -> Mapping[int, LayerView]:
        full, near = (part.views(batch, one) for part, one in zip(self.both, placed, strict=True))
        return {**full, **near}

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        return all([part.seq_rm(seq, p0, p1) for part in self.both])

    def load(self, seq: int, saved: tuple[SavedCells, SavedCells]) -> bool:
        for part in self.both:
            part.seen = self.seen
        return all(part.load(seq, one) for part, one in zip(self.both, saved, strict=True))


def pad_window(n: int) -> int:
    """Pad a window's cache to a multiple of 256 cells."""
    return -(-n // 256) * 256
