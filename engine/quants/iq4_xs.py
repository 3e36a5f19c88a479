"""IQ4_XS: 256 weights in 136 bytes; weight = d * (scale - 32) * value of a nibble."""

import numpy as np

from lockstep.engine.kernels.lanes import (
    as_float,
    byte_at,
    bytes_at,
    half_at,
    kernel,
    lookup,
    store,
    uint16_at,
)
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets
from lockstep.engine.quants.codebooks import codebook

LAYOUT = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)])
SIZE = LAYOUT.itemsize
D, SCALES_H, SCALES_L, QS = offsets(LAYOUT)
VALUES = tuple(codebook("iq4_nl").view(np.int8).tolist())


class IQ4_XS(WeightFormat, name="IQ4_XS"):
    type_id = 23
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
                low = byte_at(raw, start + SCALES_L + group // 2) >> 4 * (group % 2) & 15
                high = uint16_at(raw, start + SCALES_H) >> 2 * group & 3
                scale = d * np.float32((low | high << 4) - 32)
                # byte i holds weight i (low nibble) and weight i + 16 (high nibble)
                q, to = bytes_at(raw, start + QS + 16 * group, 16), 256 * block + 32 * group
                store(out, to, scale * as_float(lookup(VALUES, q & 15)))
                store(out, to + 16, scale * as_float(lookup(VALUES, q >> 4)))
