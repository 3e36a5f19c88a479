"""Flash attention, by the mirror that follows it rounding by rounding (engine/ops/flash_mirror.py).

Source: ggml_compute_forward_flash_attn_ext in ggml-cpu/ops.cpp of llama-cpp-python 0.3.36.
"""

import numpy as np

from engine.errors import Unsupported
from engine.ops.flash_mirror import FlashMirror
from engine.ops.ggml.base import SMALLEST, Build, Expected, Node, U, meaning


@meaning("FLASH_ATTN_EXT")
def flash_attn_ext(node: Node, build: Build) -> Expected:
    """q: (1, heads, tokens, dim), k, v: (1, kv_heads, cells, dim) -> (1, tokens, heads, dim)."""
    scale, max_bias, softcap = (float(f) for f in node.floats()[:3])
    q, k, v = (node.source(i) for i in range(3))
    if max_bias or softcap or node.optional(4) is not None:
        raise Unsupported("FLASH_ATTN_EXT with ALiBi, a soft cap or sinks")
    if k.type != v.type or k.type not in ("F16", "F32") or q.ne[3] != 1:
        raise Unsupported(f"FLASH_ATTN_EXT on {k.type} keys and {v.type} values")
    if k.ne[0] != v.ne[0]:
        raise Unsupported("FLASH_ATTN_EXT on keys and values of different sizes")
    mask = node.wide(3)[0, 0, : q.ne[1]] if node.optional(3) is not None else None
    visible = np.ones((q.ne[1], k.ne[1]), bool) if mask is None else mask == 0
    if mask is not None and not np.isneginf(mask[~visible]).all():
        raise Unsupported("FLASH_ATTN_EXT with a mask of other values than 0 and -inf")
    assert q.value is not None
    assert k.value is not None
    assert v.value is not None
    ordered = [t.value[0].transpose(1, 0, 2) for t in (q, k, v) if t.value is not None]
    mirror = FlashMirror(n_threads=build.n_threads, n_ctx=k.ne[1])
    found = mirror.attend(
        ordered[0].astype(np.float32), ordered[1], ordered[2], scale, np.ascontiguousarray(visible)
    )
    value = found.out.astype(np.float64).reshape(node.value.shape)
    allowed = found.radius.reshape(node.value.shape) + U * np.abs(value) + SMALLEST
    return Expected(value, allowed, "a running bound through the mirrored online softmax")
