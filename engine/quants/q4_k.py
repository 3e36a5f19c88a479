"""Q4_K: 256 weights in 144 bytes, 8 groups of 32; weight = d * scale * nibble - dmin * minimum."""

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

LAYOUT = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])
SIZE = LAYOUT.itemsize
D, DMIN, SCALES, QS = offsets(LAYOUT)


class Q4_K(WeightFormat, name="Q4_K"):
    type_id = 12
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
            for pair in range(4):  # two groups share 32 bytes: low nibbles, then high nibbles
                q = bytes_at(raw, start + QS + 32 * pair, 32)
                low, high = 2 * pair, 2 * pair + 1
                store(out, 256 * i + 32 * low, d[low] * as_float(q & 15) - m[low])
                store(out, 256 * i + 32 * high, d[high] * as_float(q >> 4) - m[high])
