"""Keys and values in cells that are placed, shared, moved, copied: the numbers of `Attention`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.batch import Batch
from engine.kv_cache import KvCache
from engine.memory import Attention, Placed, Saved
from engine.quants.base import F32
from engine.ubatch import Entries

Rotate = Callable[[F32, NDArray[np.int32]], F32]  # keys (cells, heads, dim), how far each moves
Index = NDArray[np.intp]


@dataclass(frozen=True)
class SavedNumbers:
    """Rows of `Attention.save`, and what lies in their cells: (layers, rows, kv_heads, dim)."""

    rows: list[Saved]
    keys: NDArray[Any]
    values: NDArray[Any]


class CellCache(Attention):
    """Cells are numbered through all streams. Keys are stored rotated, so a cell that has moved is
    rotated further before it is used, copied or saved."""

    def __init__(self, store: KvCache, rotate: Rotate, **shape: Any) -> None:
        """`store` has room for the cells of all streams."""
        super().__init__(**shape)
        self.store, self.rotate = store, rotate
        self.size: int = shape["size"]
        self.loading: SavedNumbers | None = None

    def settle(self) -> None:
        """Rotate what has moved."""
        for stream, cells in enumerate(self.streams):
            moved = [i for i in cells.used() if cells.shift[i]]
            if not moved:
                continue
            at = self.numbers(stream, moved)
            deltas = np.array([cells.shift[i] for i in moved], np.int32)
            for keys in self.store.keys:
                keys[at] = self.rotate(keys[at], deltas)
        super().settle()

    def numbers(self, stream: int, cells: list[int]) -> Index:
        return np.array(cells, np.intp) + stream * self.size

    # --- operations that move numbers ---------------------------------------------------------

    def seq_cp(self, source: int, to: int, p0: int, p1: int) -> None:
        self.settle()
        super().seq_cp(source, to, p0, p1)

    def copied(self, source: int, to: int) -> None:
        at, into = (self.numbers(s, list(range(self.size))) for s in (source, to))
        for kept in (self.store.keys, self.store.values):
            kept[:, into] = kept[:, at]

    def save(self, seq: int) -> Any:
        self.settle()
        rows = super().save(seq)
        places = [place for stream in rows for _, _, place in stream]
        at = np.array([stream * self.size + i for stream, i in places], np.intp)
        return SavedNumbers(rows, self.store.keys[:, at], self.store.values[:, at])

    def load(self, seq: int, saved: Any) -> bool:
        self.loading = saved
        return super().load(seq, saved.rows)

    def restored(self, stream: int, found: list[int], places: list[tuple[int, int]]) -> None:
        assert self.loading is not None
        every = [place for rows in self.loading.rows for _, _, place in rows]
        at = self.numbers(stream, found)
        kept = [every.index(place) for place in places]
        self.store.keys[:, at] = self.loading.keys[:, kept]
        self.store.values[:, at] = self.loading.values[:, kept]


class Placement(KvCache):
    """What a graph sees of the cells while it computes one ubatch that has been applied."""

    def __init__(self, cache: CellCache, batch: Entries, placed: Placed) -> None:
        rows = zip(placed.streams, placed.cells, strict=True)
        self.at = np.concatenate([cache.numbers(stream, cells) for stream, cells in rows])
        self.keys, self.values = cache.store.keys, cache.store.values
        entries = [batch[at] for at in placed.ubatch.order]
        looks = [self.seen(cache, min(e.seqs), e.pos) for e in entries]
        self.columns = np.unique(np.concatenate(looks))
        self.mask = np.array([np.isin(self.columns, look) for look in looks])

    def seen(self, cache: CellCache, seq: int, pos: int) -> Index:
        """The cells of a sequence up to a position, within the window."""
        cells = cache.cells(seq)
        mine = [i for i in cells.of(seq, 0, pos + 1) if not cache.hidden(cells.pos[i], pos)]
        return cache.numbers(cache.stream(seq), mine)

    def reserve(self, batch: Batch) -> Any:
        return self.at

    def read(self, layer: int) -> tuple[NDArray[Any], NDArray[Any]]:
        return self.keys[layer, self.columns], self.values[layer, self.columns]

    def visible(self, batch: Batch) -> NDArray[np.bool_]:
        return self.mask
