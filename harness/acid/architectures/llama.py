"""llama: norms before, rotary pairs side by side, grouped heads, gated feed-forward."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from harness.acid.shape import F64, Shape
from harness.acid.weights import Weights

SHAPE = Shape()


def keys(s: Shape) -> dict[str, tuple[str, Any]]:
    return {
        "llama.context_length": ("U32", s.n_ctx),
        "llama.embedding_length": ("U32", s.n_embd),
        "llama.block_count": ("U32", s.n_layer),
        "llama.feed_forward_length": ("U32", s.n_ff),
        "llama.attention.head_count": ("U32", s.n_head),
        "llama.attention.head_count_kv": ("U32", s.n_head_kv),
        "llama.attention.layer_norm_rms_epsilon": ("F32", s.eps),
        "llama.rope.dimension_count": ("U32", s.n_embd_head),
        "llama.rope.freq_base": ("F32", s.rope_base),
    }


def matrices(w: Weights) -> Iterator[tuple[str, F64]]:
    """Vectors are norms, which are F32 in every file."""
    n_embd = w.shape.n_embd
    yield "token_embd", w.embd
    for layer in range(w.shape.n_layer):
        block = f"blk.{layer}."
        yield block + "attn_norm", w.attn_norm[layer]
        yield block + "attn_q", w.q[layer].reshape(-1, n_embd)
        yield block + "attn_k", w.k[layer].reshape(-1, n_embd)
        yield block + "attn_v", w.v[layer].reshape(-1, n_embd)
        yield block + "attn_output", w.o[layer].reshape(n_embd, -1)
        yield block + "ffn_norm", w.ffn_norm[layer]
        yield block + "ffn_gate", w.gate[layer]
        yield block + "ffn_up", w.up[layer]
        yield block + "ffn_down", w.down[layer]
    yield "output_norm", w.output_norm
    yield "output", w.head


def as_bytes(values: F64, kind: str) -> bytes:
    """values: of eight significant bits, so that nothing is rounded here."""
    if kind == "BF16":
        raw = np.ascontiguousarray(values, "<f4").view("<u4") >> 16
        return raw.astype("<u2").tobytes()
    return np.ascontiguousarray(values, {"F32": "<f4", "F16": "<f2"}[kind]).tobytes()
