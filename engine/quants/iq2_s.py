"""IQ2_S: 256 weights in 82 bytes; weight = d * (scale + 1/2) / 4 * +-magnitude."""

import numpy as np

from lockstep.engine.kernels.lanes import (
    as_float,
    bits_of,
    byte_at,
    half_at,
    kernel,
    store,
    uint16_at,
    where,
)
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets
from lockstep.engine.quants.codebooks import codebook, entries

LAYOUT = np.dtype(
    [("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)]
)
SIZE = LAYOUT.itemsize
D, QS, SIGNS, QH, SCALES = offsets(LAYOUT)
GRID = codebook("iq2_s")


class IQ2_S(WeightFormat, name="IQ2_S"):
    type_id = 22
    weights = 256
    layout = LAYOUT
    vec_dot_type = "Q8_K"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for block in range(raw.size // SIZE):
            start = SIZE * block
            d = half_at(raw, start + D)
            for group in range(16):
                # 8 weights have a byte of index in qs, 2 more bits in qh, and a byte of signs
                at, shift = start + QS + 2 * group, 4 * (group % 2)
                high = byte_at(raw, start + QH + group // 2) >> shift
                low = byte_at(raw, at), byte_at(raw, at + 1)
                indices = low[0] | (high & 3) << 8, low[1] | (high & 12) << 6
                magnitude = as_float(entries(GRID, indices))
                negative = bits_of(uint16_at(raw, start + SIGNS + 2 * group), 16)
                nibble = byte_at(raw, start + SCALES + group // 2) >> shift & 15
                scale = d * (np.float32(nibble) + np.float32(0.5)) * np.float32(0.25)
                weight = scale * magnitude
                store(out, 256 * block + 16 * group, where(negative, -weight, weight))
