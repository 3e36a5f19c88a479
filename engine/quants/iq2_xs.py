"""IQ2_XS: 256 weights in 74 bytes; weight = d * (scale + 1/2) / 4 * +-magnitude."""

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
from lockstep.engine.quants.codebooks import SIGNS, codebook, entries

LAYOUT = np.dtype([("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)])
SIZE = LAYOUT.itemsize
D, QS, SCALES = offsets(LAYOUT)
GRID = codebook("iq2_xs")


class IQ2_XS(WeightFormat, name="IQ2_XS"):
    type_id = 17
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
                # 8 weights have a number of 16 bits: 9 bits of index, 7 of signs
                low = uint16_at(raw, start + QS + 4 * group)
                high = uint16_at(raw, start + QS + 4 * group + 2)
                magnitude = as_float(entries(GRID, (low & 511, high & 511)))
                negative = bits_of(SIGNS[low >> 9] | SIGNS[high >> 9] << 8, 16)
                nibble = byte_at(raw, start + SCALES + group // 2) >> 4 * (group % 2) & 15
                scale = d * (np.float32(nibble) + np.float32(0.5)) * np.float32(0.25)
                weight = scale * magnitude
                store(out, 256 * block + 16 * group, where(negative, -weight, weight))
