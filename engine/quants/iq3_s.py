"""IQ3_S: 256 weights in 110 bytes; weight = d * (2 * scale + 1) * +-magnitude."""

import numpy as np

from lockstep.engine.kernels.lanes import (
    as_float,
    bits_of,
    byte_at,
    bytes_at,
    half_at,
    kernel,
    store,
    uint32_at,
    where,
)
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets
from lockstep.engine.quants.codebooks import codebook, entries

LAYOUT = np.dtype(
    [("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)]
)
SIZE = LAYOUT.itemsize
D, QS, QH, SIGNS, SCALES = offsets(LAYOUT)
GRID = codebook("iq3_s")


class IQ3_S(WeightFormat, name="IQ3_S"):
    type_id = 21
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
                # 4 weights have a byte of index in qs, and one more bit in qh
                high = bits_of(byte_at(raw, start + QH + group), 8)
                indices = bytes_at(raw, start + QS + 8 * group, 8) | high << 8
                magnitude = as_float(entries(GRID, indices))
                negative = bits_of(uint32_at(raw, start + SIGNS + 4 * group), 32)
                nibble = byte_at(raw, start + SCALES + group // 2) >> 4 * (group % 2) & 15
                weight = d * np.float32(2 * nibble + 1) * magnitude
                store(out, 256 * block + 32 * group, where(negative, -weight, weight))
