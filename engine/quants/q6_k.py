"""Q6_K: 256 weights in 210 bytes, 16 groups of 16; weight = d * scale * (q - 32)."""

import numpy as np

from lockstep.engine.kernels.lanes import (
    as_float,
    bytes_at,
    half_at,
    kernel,
    signed_bytes_at,
    store,
)
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets

LAYOUT = np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])
SIZE = LAYOUT.itemsize
QL, QH, SCALES, D = offsets(LAYOUT)


class Q6_K(WeightFormat, name="Q6_K"):
    type_id = 14
    weights = 256
    layout = LAYOUT
    vec_dot_type = "Q8_K"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(raw.size // SIZE):
            start = i * SIZE
            d = half_at(raw, start + D) * as_float(signed_bytes_at(raw, start + SCALES, 16))
            for group in range(16):
                half, quarter, side = group // 8, group // 2 % 4, group % 2
                # quarters of 32 weights in each half: the low nibbles of its 64 bytes, then the
                # high nibbles
                low = bytes_at(raw, start + QL + 64 * half + 32 * (quarter % 2) + 16 * side, 16)
                top = bytes_at(raw, start + QH + 32 * half + 16 * side, 16)
                q = (low >> 4 * (quarter // 2) & 15) | (top >> 2 * quarter & 3) << 4
                store(out, 256 * i + 16 * group, d[group] * as_float(q - 32))
