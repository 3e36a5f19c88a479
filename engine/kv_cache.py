"""Keys and values of past tokens. What a cell holds is rounded to an explicit storage type."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.batch import Batch
from engine.errors import InvalidModel, Unsupported
from engine.quants.base import F32

STORAGE: dict[str, type[np.floating[Any]]] = {"F32": np.float32, "F16": np.float16}


class KvCache:
    """Cells in the order in which tokens came; every layer holds a key and a value per cell.

    `reserve` takes cells for a batch, once; then each layer stores into them and reads all cells.
    """

    def __init__(
        self,
        *,
        n_layer: int,
        n_head_kv: int,
        n_embd_head: int,
        n_ctx: int,
        type_k: str,
        type_v: str,
    ) -> None:
        for kind in (type_k, type_v):
            if kind not in STORAGE:
                raise Unsupported(f"no cache storage type {kind!r} (known: {', '.join(STORAGE)})")
        shape = (n_layer, n_ctx, n_head_kv, n_embd_head)
        self.keys: NDArray[Any] = np.zeros(shape, STORAGE[type_k])
        self.values: NDArray[Any] = np.zeros(shape, STORAGE[type_v])
        self.positions = np.full(n_ctx, -1, np.int32)
        self.seq_ids = np.full(n_ctx, -1, np.int32)
        self.used = 0

    def reserve(self, batch: Batch) -> slice:
        """The cells that this batch will fill."""
        start, stop = self.used, self.used + len(batch)
        if stop > len(self.positions):
            raise InvalidModel(
                f"the batch needs {stop} cells, the cache has {len(self.positions)}; raise n_ctx"
            )
        cells = slice(start, stop)
        self.positions[cells] = batch.positions
        self.seq_ids[cells] = batch.seq_ids
        self.used = stop
        return cells

    def store(self, layer: int, cells: slice, k: F32, v: F32 | None) -> None:
        """k, v: (tokens, kv_heads, head_dim), rounded to the storage types on the way in.

        None: values are part of the keys.
        """
        with np.errstate(over="ignore"):  # beyond 65504 a half is infinite
            self.keys[layer, cells] = k
            if v is not None:
                self.values[layer, cells] = v

    def read(self, layer: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Keys and values of the cells in use, as stored: (cells, kv_heads, head_dim) each."""
        return self.keys[layer, : self.used], self.values[layer, : self.used]

    def visible(self, batch: Batch) -> NDArray[np.bool_]:
        """Which cells each token may look at: its own sequence's, up to its own position."""
        same = self.seq_ids[None, : self.used] == batch.seq_ids[:, None]
        past = self.positions[None, : self.used] <= batch.positions[:, None]
        both: NDArray[np.bool_] = same & past  # (tokens, cells)
        return both

    def within(self, batch: Batch, window: int) -> NDArray[np.bool_]:
        """Which cells are fewer positions before each token than the window is wide."""
        far = batch.positions[:, None] - self.positions[None, : self.used]
        near: NDArray[np.bool_] = far < window
        return near


class OneBatch(KvCache):
    """Of a model whose tokens see all others of their sequence in the same batch: the next one
    begins anew."""

    def reserve(self, batch: Batch) -> slice:
        self.used = 0
        return super().reserve(batch)

    def visible(self, batch: Batch) -> NDArray[np.bool_]:
        same: NDArray[np.bool_] = self.seq_ids[None, : self.used] == batch.seq_ids[:, None]
        return same
