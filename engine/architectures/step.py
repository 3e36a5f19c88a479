"""`Step`: everything that the graph of one ubatch reads and calls."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.errors import Unsupported
from lockstep.engine.memory.base import LayerView
from lockstep.engine.ops.coded import decode, encode, is_coded, turn
from lockstep.engine.ops.reference import ReferenceOps
from lockstep.engine.quants.base import F32
from lockstep.engine.trace import Probe, silent


@dataclass(frozen=True, eq=False)
class Step:
    batch: Batch
    memory: Mapping[int, LayerView]  # by layer: what it remembers
    ops: ReferenceOps
    probe: Probe
    flash_attn: bool

    def attend(
        self,
        layer: int,
        q: F32,
        k: F32,
        v: F32 | None,
        scale: float,
        window: int = 0,
        cap: float = 0.0,
        within: int = 0,
        sinks: F32 | None = None,
    ) -> F32:
        """Attend to the cells that each token sees. q: (tokens, heads, dim); k, v: (tokens,
        kv_heads, dim) -> (tokens, heads * dim).

        window: the number of tokens that each token sees, itself included; 0: all tokens before it.
        cap: the limit of all scores (tanh); 0: no limit. within: if v is None, the number of first
        elements of a key that are its value. sinks: (heads,), an additional score of each row,
        without a value.
        """
        ops, probe = self.ops, self.probe
        memory = self.memory[layer]
        of_keys, of_values = memory.hadamard_sizes()
        q, k = turn(q, of_keys), turn(k, of_keys)
        memory.store(k, k[:, :, :0] if v is None else turn(v, of_values))
        keys, values = memory.read()  # (cells, kv_heads, dim, or blocks of it)
        if v is None and is_coded(keys):
            raise Unsupported("keys that also serve as values, in a quantised cache")
        visible = memory.visible(window)
        keys = show_cache(probe, "k_cache", layer, keys)
        values = keys[:, :, :within] if v is None else show_cache(probe, "v_cache", layer, values)
        out: F32
        if self.flash_attn:
            # llama.cpp casts F32 keys and values to F16 (build_attn_mha in llama-graph.cpp)
            keys, values = (
                x if is_coded(x) else x.astype(np.float16, copy=False) for x in (keys, values)
            )
            out = ops.flash_attn(q, keys, values, scale, visible, cap, sinks)
            return turn_heads(probe("fattn", layer, out), of_values, q.shape[1])
        kq = probe("kq", layer, ops.kq(q, keys))  # (heads, tokens, cells)
        if cap:
            kq = probe("kq_scaled_2", layer, ops.soft_cap(kq, cap))
        if sinks is None:
            kq = ops.soft_max(kq, scale, visible)
        else:
            kq = ops.soft_max_with_sinks(kq, scale, visible, sinks)
        kq = probe("kq_soft_max", layer, kq)
        out = ops.kqv(kq, values)
        if v is None:  # llama.cpp gives this name to a node after attention
            heads = out.reshape(len(q), q.shape[1], within).transpose(1, 0, 2)
            heads = probe("kqv", layer, heads)  # (heads, tokens, within)
            return heads.transpose(1, 0, 2).reshape(out.shape)
        out = probe("kqv_out", layer, out)
        return out


def show_cache(probe: Probe, name: str, layer: int, kept: NDArray[Any]) -> NDArray[Any]:
    """Show the cache to the probe as float32; return the probe's value in the cache's type."""
    if probe is silent:
        return kept
    shown = decode(kept).astype(np.float32)
    found: NDArray[Any] = probe(name, layer, shown)
    if found is shown:
        return kept
    return encode(found, kept) if is_coded(kept) else found.astype(kept.dtype)


def turn_heads(x: F32, size: int, n_head: int) -> F32:
    """Undo the rotation in which values are stored. x: (tokens, heads * dim)."""
    return turn(x.reshape(len(x), n_head, -1), size).reshape(x.shape) if size else x
