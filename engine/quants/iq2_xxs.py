"""IQ2_XXS: 256 weights in 66 bytes; weight = d * (scale + 1/2) / 4 * +-magnitude."""

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

LAYOUT = np.dtype([("d", "<f2"), ("qs", "<u2", 32)])
SIZE = LAYOUT.itemsize
D, QS = offsets(LAYOUT)
GRID = codebook("iq2_xxs")


class IQ2_XXS(WeightFormat, name="IQ2_XXS"):
    type_id = 16
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
                # 32 weights share 8 bytes: 4 indices, then 4 x 7 bits of signs and 4 bits of scale
                at = start + QS + 8 * group
                magnitude = as_float(entries(GRID, bytes_at(raw, at, 4)))
                word = uint32_at(raw, at + 4)
                negative = bits_of(four_signs(word), 32)
                scale = d * (np.float32(word >> 28) + np.float32(0.5)) * np.float32(0.25)
                weight = scale * magnitude
                store(out, 256 * block + 32 * group, where(negative, -weight, weight))
