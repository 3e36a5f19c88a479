"""What the graph of one ubatch reads and calls, as one value."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.batch import Batch
from engine.memory.base import View
from engine.ops.reference import Reference
from engine.quants.base import F32
from engine.trace import Probe


@dataclass(frozen=True, eq=False)
class Step:
    batch: Batch
    memory: Mapping[int, View]  # of each layer, what it remembers
    ops: Reference
    probe: Probe
    flash_attn: bool

    def attend(self, layer: int, q: F32, k: F32, v: F32, scale: float, window: int = 0) -> F32:
        """q: (tokens, heads, dim); k, v: (tokens, kv_heads, dim) -> (tokens, heads * dim).

        window: how many tokens each sees, itself counted; 0: all before it.
        """
        ops, probe = self.ops, self.probe
        memory = self.memory[layer]
        memory.store(k, v)
        keys, values = memory.read()  # (cells, kv_heads, dim)
        visible = memory.visible(window)
        keys = shown(probe, "k_cache", layer, keys)
        values = shown(probe, "v_cache", layer, values)
        out: F32
        if self.flash_attn:
            out = probe("fattn", layer, ops.flash_attn(q, keys, values, scale, visible))
            return out
        kq = probe("kq", layer, ops.kq(q, keys))  # (heads, tokens, cells)
        kq = probe("kq_soft_max", layer, ops.soft_max(kq, scale, visible))
        out = probe("kqv_out", layer, ops.kqv(kq, values))
        return out


def shown(probe: Probe, name: str, layer: int, kept: NDArray[Any]) -> NDArray[Any]:
    """What a cache holds, shown as float32 and given back in the cache's own type."""
    out: NDArray[Any] = probe(name, layer, kept.astype(np.float32)).astype(kept.dtype)
    return out
