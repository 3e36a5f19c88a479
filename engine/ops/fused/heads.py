"""Split of a fused QKV into heads that are normed, rotated and stored.

Inputs are rows of tokens, and results have heads first: (tokens, heads, head_dim) -> (heads,
tokens, head_dim). Rotations take cosines and sines from tables, (positions, head_dim / 2). `pairs`
says which elements rotate together: "half" (half a row apart, as in Qwen and ggml's NEOX) or
"adjacent" (as in ggml's NORMAL).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.ops.fused.base import Call, Result, expect_copy, operation
from lockstep.engine.ops.fused.norms import rms_normed
from lockstep.engine.ops.near import Near, exact, near
from lockstep.engine.ops.rotation import rotate

TRANSPOSE, NORM_AND_ROTATE, ROTATE = 0, 1, 2  # values of qk_norm_rope's mode
PAIRS: dict[str, Callable[[int], tuple[slice, slice]]] = {
    "half": lambda n: (slice(0, n // 2), slice(n // 2, n)),
    "adjacent": lambda n: (slice(0, n, 2), slice(1, n, 2)),
}


def rotate_pairs(x: Near, cos: Near, sin: Near, pairs: str) -> Near:
    """Rotate pairs of elements. x: (tokens, heads, dim); cos, sin: (tokens, 1, dim / 2)."""
    if pairs not in PAIRS:
        raise Unsupported(f"no pairs named {pairs!r} (known: {', '.join(PAIRS)})")
    return near(rotate(x, cos, sin, *PAIRS[pairs](x.v.shape[-1])))


def tables(call: Call, tokens: int) -> tuple[Near, Near]:
    """Return cosines and sines for the positions of `tokens` tokens, from `pos_offset` on."""
    at = call.number("pos_offset")
    cos, sin = (exact(call[name][at : at + tokens, None]) for name in ("cos", "sin"))
    return cos, sin


def heads_first(x: Near) -> Near:
    wide = np.broadcast_to(np.asarray(x.r), x.v.shape)
    return Near(x.v.transpose(1, 0, 2), wide.transpose(1, 0, 2))


def prepare_heads(call: Call, x: Near, weight: str, mode: int) -> Near:
    """Prepare heads as the mode asks: (tokens, heads, dim) -> (heads, tokens, dim)."""
    if mode == NORM_AND_ROTATE:
        x = rms_normed(x, call.exact(weight), call.real("eps"))
    if mode in (NORM_AND_ROTATE, ROTATE):
        x = rotate_pairs(x, *tables(call, len(x.v)), str(call.params["pairs"]))
    elif mode != TRANSPOSE:
        raise Unsupported(f"mode {mode} (known: 0, 1, 2)")
    return heads_first(x)


@operation("apply_rotary_emb")
def apply_rotary_emb(call: Call) -> dict[str, Result]:
    """Rotate the pairs of each head, as the parameter `pairs` arranges them. x: (tokens, heads,
    dim) -> the same."""
    x = call.exact("x")
    found = rotate_pairs(x, *tables(call, len(x.v)), str(call.params["pairs"]))
    return {"y": found.expect("two products and their sum")}


@operation("qk_norm_rope")
def qk_norm_rope(call: Call) -> dict[str, Result]:
    mode = call.number("mode")
    if mode == TRANSPOSE:
        return {"y": expect_copy(call.inputs["x"].transpose(1, 0, 2))}
    found = prepare_heads(call, call.exact("x"), "weight", mode)
    return {"y": found.expect("a norm and a rotation")}


def parts(call: Call) -> dict[str, NDArray[np.float32]]:
    """Split rows of (q_heads + 2 * kv_heads) * dim into q, k and v, (tokens, heads, dim) each."""
    dim = call.number("head_dim")
    ends = np.cumsum([call.number("q_heads"), call.number("kv_heads")]) * dim
    split = np.split(call.inputs["qkv"], ends, axis=1)
    return {name: part.reshape(len(part), -1, dim) for name, part in zip("qkv", split, strict=True)}


@operation("split_qkv")
def split_qkv(call: Call) -> dict[str, Result]:
    """Return rows of q, k and v: (tokens, heads * dim) each."""
    return {name: expect_copy(part.reshape(len(part), -1)) for name, part in parts(call).items()}


def split_and_prepared(call: Call) -> dict[str, Result]:
    found, mode = parts(call), call.number("qk_mode")
    out: dict[str, Result] = {"v": expect_copy(found["v"].transpose(1, 0, 2))}
    for name in "qk":
        turned_heads = prepare_heads(
            call, exact(found[name].astype(np.float64)), f"{name}_weight", mode
        )
        out[name] = turned_heads.expect("a norm and a rotation")
    return out


@operation("split_qkv_norm_rope")
def split_qkv_norm_rope(call: Call) -> dict[str, Result]:
    """Return q, k and v with heads first. Only q and k are normed and rotated."""
    return split_and_prepared(call)
