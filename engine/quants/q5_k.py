"""Q5_K: 256 weights in 176 bytes, 8 groups of 32; weight = d * scale * q - dmin * minimum."""

import numpy as np

from lockstep.engine.kernels.lanes import (
    as_float,
    bytes_at,
    half_at,
    kernel,
    store,
)
from lockstep.engine.kernels.scales import scales_and_minima
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets

LAYOUT = np.dtype(
    [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)]
)
SIZE = LAYOUT.itemsize
D, DMIN, SCALES, QH, QS = offsets(LAYOUT)


class Q5_K(WeightFormat, name="Q5_K"):
    type_id = 13
    weights = 256
    layout = LAYOUT
    vec_dot_type = "Q8_K"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(raw.size // SIZE):
            start = i * SIZE
            scales, minima = scales_and_minima(raw, start + SCALES)
            d = half_at(raw, start + D) * as_float(scales)
            m = half_at(raw, start + DMIN) * as_float(minima)
            fifth = bytes_at(raw, start + QH, 32)  # bit g of byte j belongs to weight j of group g
            for pair in range(4):  # two groups share 32 bytes: low nibbles, then high nibbles
                q = bytes_at(raw, start + QS + 32 * pair, 32)
                low, high = 2 * pair, 2 * pair + 1
                q0 = (q & 15) | (fifth >> low & 1) << 4
                q1 = (q >> 4) | (fifth >> high & 1) << 4
                store(out, 256 * i + 32 * low, d[low] * as_float(q0) - m[low])
                store(out, 256 * i + 32 * high, d[high] * as_float(q1) - m[high])
