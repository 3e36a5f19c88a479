"""The memory of models that remember nothing: each batch is computed at once, and sees only itself.

Source: `llama_context::encode` of llama-cpp-python 0.3.36, used for models without a causal mask.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.memory.base import LayerView, Memory
from lockstep.engine.memory.ubatch import Entries, Ubatch, split_simple
from lockstep.engine.quants.base import F32


class NoMemory(Memory):
    """Memory of models without a cache: nothing to move, copy or save."""

    def __init__(self, n_seq: int, layers: Collection[int] = ()) -> None:
        super().__init__(n_seq)
        self.layers = layers

    def place(self, batch: Entries, n_ubatch: int) -> list[Ubatch] | None:
        """Return one ubatch of all tokens, or None if one ubatch cannot hold them: tokens do not
        see other ubatches.
        """
        ubatches = split_simple(batch, n_ubatch)
        self.seen.ubatches += ubatches
        return ubatches if len(ubatches) == 1 else None

    def views(self, batch: Entries, placed: Ubatch) -> Mapping[int, LayerView]:
        entries = [batch[at] for at in placed.order]
        seqs = np.array([min(e.seqs) for e in entries])
        pos = np.array([e.pos for e in entries])
        return {layer: BatchView(seqs, pos) for layer in self.layers}


class BatchView(LayerView):
    """The keys and values of the current batch."""

    def __init__(self, seqs: NDArray[np.int64], pos: NDArray[np.int64]) -> None:
        self.seqs, self.pos = seqs, pos
        self.numbers: tuple[F32, ...] = ()

    def store(self, *numbers: F32) -> None:
        self.numbers = numbers

    def read(self) -> tuple[NDArray[Any], ...]:
        return self.numbers

    def visible(self, window: int) -> NDArray[np.bool_]:
        """Return a mask of all tokens of the same sequence, before and after; a window is centred
        on the token.
        """
        same: NDArray[np.bool_] = self.seqs[:, None] == self.seqs
        return same & (np.abs(self.pos[:, None] - self.pos) <= window // 2) if window else same
