"""IQ1_S: 256 weights in 50 bytes; weight = d * (2 * scale + 1) * (-1, 0 or 1, +-1/8)."""

import numpy as np

from lockstep.engine.kernels.lanes import (
    as_float,
    byte_at,
    half_at,
    kernel,
    spread,
    store,
    uint16_at,
    where,
)
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets
from lockstep.engine.quants.codebooks import codebook, entries

LAYOUT = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("qh", "<u2", 8)])
SIZE = LAYOUT.itemsize
D, QS, QH = offsets(LAYOUT)
GRID = codebook("iq1")


class IQ1_S(WeightFormat, name="IQ1_S"):
    type_id = 19
    weights = 256
    layout = LAYOUT
    vec_dot_type = "Q8_K"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for block in range(raw.size // SIZE):
            start = SIZE * block
            d = half_at(raw, start + D)
            for group in range(8):
                # qh for 32 weights: the high bits of 4 indices, 3 bits of scale, the sign of 1/8
                at, high = start + QS + 4 * group, uint16_at(raw, start + QH + 2 * group)
                indices = (
                    byte_at(raw, at) | (high & 7) << 8,
                    byte_at(raw, at + 1) | (high >> 3 & 7) << 8,
                    byte_at(raw, at + 2) | (high >> 6 & 7) << 8,
                    byte_at(raw, at + 3) | (high >> 9 & 7) << 8,
                )
                scale = d * np.float32(2 * (high >> 12 & 7) + 1)
                delta = where(spread(high & 0x8000, 32), np.float32(-0.125), np.float32(0.125))
                weight = scale * (as_float(entries(GRID, indices)) + delta)
                store(out, 256 * block + 32 * group, weight)
