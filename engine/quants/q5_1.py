"""Q5_1: 32 weights in 24 bytes; weight = d * q + m; q has 4 bits and a fifth bit in another
field."""

import numpy as np

from lockstep.engine.kernels.lanes import (
    as_float,
    bits_of,
    bytes_at,
    half_at,
    kernel,
    store,
    uint16_at,
)
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets

LAYOUT = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])
SIZE = LAYOUT.itemsize
D, M, QH, QS = offsets(LAYOUT)


class Q5_1(WeightFormat, name="Q5_1"):
    type_id = 7
    weights = 32
    layout = LAYOUT
    vec_dot_type = "Q8_1"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(raw.size // SIZE):
            d = half_at(raw, i * SIZE + D)
            m = half_at(raw, i * SIZE + M)
            q = bytes_at(raw, i * SIZE + QS, 16)
            # byte j holds weight j (low nibble) and weight j + 16; bit j of qh belongs to weight j
            low = (q & 15) | bits_of(uint16_at(raw, i * SIZE + QH), 16) << 4
            high = (q >> 4) | bits_of(uint16_at(raw, i * SIZE + QH + 2), 16) << 4
            store(out, 32 * i, d * as_float(low) + m)
            store(out, 32 * i + 16, d * as_float(high) + m)
