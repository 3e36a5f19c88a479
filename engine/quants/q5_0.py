"""Q5_0: 32 weights in 22 bytes; weight = d * (q - 16); q has 4 bits and a fifth bit in another
field.
"""

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

LAYOUT = np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])
SIZE = LAYOUT.itemsize
D, QH, QS = offsets(LAYOUT)


class Q5_0(WeightFormat, name="Q5_0"):
    type_id = 6
    weights = 32
    layout = LAYOUT
    vec_dot_type = "Q8_0"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(raw.size // SIZE):
            d = half_at(raw, i * SIZE + D)
            q = bytes_at(raw, i * SIZE + QS, 16)
            # byte j holds weight j (low nibble) and weight j + 16; bit j of qh belongs to weight j
            low = (q & 15) | bits_of(uint16_at(raw, i * SIZE + QH), 16) << 4
            high = (q >> 4) | bits_of(uint16_at(raw, i * SIZE + QH + 2), 16) << 4
            store(out, 32 * i, d * as_float(low - 16))
            store(out, 32 * i + 16, d * as_float(high - 16))
