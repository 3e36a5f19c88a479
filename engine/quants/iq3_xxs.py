"""IQ3_XXS: 256 weights in 98 bytes; weight = d * (scale + 1/2) / 2 * +-magnitude."""

import numpy as np

from lockstep.engine.kernels.lanes import (
    as_float,
    bits_of,
    bytes_at,
    half_at,
    kernel,
    store,
    uint32_at,
    where,
)
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets
from lockstep.engine.quants.codebooks import codebook, entries, four_signs

LAYOUT = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("scales_and_signs", "<u4", 8)])
SIZE = LAYOUT.itemsize
D, QS, SCALES_AND_SIGNS = offsets(LAYOUT)
GRID = codebook("iq3_xxs")


class IQ3_XXS(WeightFormat, name="IQ3_XXS"):
    type_id = 18
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
                magnitude = as_float(entries(GRID, bytes_at(raw, start + QS + 8 * group, 8)))
                # 4 x 7 bits of signs, 4 bits of scale
                word = uint32_at(raw, start + SCALES_AND_SIGNS + 4 * group)
                negative = bits_of(four_signs(word), 32)
                scale = d * (np.float32(word >> 28) + np.float32(0.5)) * np.float32(0.5)
                weight = scale * magnitude
                store(out, 256 * block + 32 * group, where(negative, -weight, weight))
