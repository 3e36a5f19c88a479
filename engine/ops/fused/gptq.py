"""The product with a GPTQ matrix: integers packed along the inputs, with scales and zeros of
groups.

qweight: (k * bits / 32, n) and qzeros: (groups, n * bits / 32), int32, the lowest bits first;
scales: (groups, n). Input i belongs to group g_idx[i], or i / group_size without g_idx. A weight is
(q - (z + zero_offset)) * scale, where zero_offset is 1 in GPTQ's first format, or 0.
"""

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.ops.fused.base import Call, Result, operation, product
from lockstep.engine.ops.near import F64, Near, U
from lockstep.engine.ops.sums import in_order


def unpack_words(words: NDArray[np.int32], bits: int, axis: int) -> NDArray[np.int64]:
    """Unpack 32 / bits numbers from each word along an axis."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    wide = np.moveaxis(words, axis, -1).view(np.uint32)[..., None]
    numbers = (wide >> shifts) & np.uint32((1 << bits) - 1)
    flat = numbers.reshape(*numbers.shape[:-2], -1).astype(np.int64)
    return np.moveaxis(flat, -1, axis)


def weights(call: Call) -> F64:
    """Return the decoded weights: (k, n)."""
    bits = call.number("bits")
    q = unpack_words(np.ascontiguousarray(call.inputs["qweight"].T), bits, 1).T
    zeros = unpack_words(np.ascontiguousarray(call.inputs["qzeros"]), bits, 1)
    group = np.arange(len(q)) // call.number("group_size")
    if "g_idx" in call.inputs:
        group = call.inputs["g_idx"]
    steps = q - (zeros + call.number("zero_offset"))[group]
    return steps * call["scales"][group]


@operation("gemm_gptq")
def gemm_gptq(call: Call) -> dict[str, Result]:
    """Multiply by the packed weights. x: (m, k) -> (m, n)"""
    x, w = call["x"], weights(call)
    near = product(x, w)
    # one more rounding: of a decoded weight, or of the product with the scale
    once_more = U * in_order(np.abs(x), np.abs(w))
    out = Near(near.v, near.r + once_more)
    return {"y": out.expect("weights decoded and products summed in any order")}
