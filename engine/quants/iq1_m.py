"""IQ1_M: 256 weights in 56 bytes; weight = d * (2 * scale + 1) * (-1, 0 or 1, +-1/8)."""

import numpy as np

from lockstep.engine.kernels.lanes import (
    as_float,
    byte_at,
    concat,
    half_of_bits,
    kernel,
    spread,
    store,
    uint16_at,
    where,
)
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets
from lockstep.engine.quants.codebooks import codebook, entries

LAYOUT = np.dtype([("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)])
SIZE = LAYOUT.itemsize
QS, QH, SCALES = offsets(LAYOUT)
GRID = codebook("iq1")


class IQ1_M(WeightFormat, name="IQ1_M"):
    type_id = 29
    weights = 256
    layout = LAYOUT
    vec_dot_type = "Q8_K"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for block in range(raw.size // SIZE):
            start = SIZE * block
            bits = 0  # d is in the highest 4 bits of each of the four scales, lowest bits first
            for i in range(4):
                bits |= uint16_at(raw, start + SCALES + 2 * i) >> 12 << 4 * i
            d = half_of_bits(bits)
            for group in range(16):
                scales = uint16_at(raw, start + SCALES + 2 * (group // 4))
                scale = d * np.float32(2 * (scales >> 3 * (group % 4) & 7) + 1)
                # 8 weights have a byte of index in qs, and in qh 3 more bits of index and the sign
                # of 1/8
                at, high = start + QS + 2 * group, byte_at(raw, start + QH + group)
                low = byte_at(raw, at), byte_at(raw, at + 1)
                indices = low[0] | (high & 0x07) << 8, low[1] | (high & 0x70) << 4
                negative = concat(spread(high & 0x08, 8), spread(high & 0x80, 8))
                delta = where(negative, np.float32(-0.125), np.float32(0.125))
                weight = scale * (as_float(entries(GRID, indices)) + delta)
                store(out, 256 * block + 16 * group, weight)
