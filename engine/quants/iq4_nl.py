"""IQ4_NL: 32 weights in 18 bytes; weight = d * value of a nibble."""

import numpy as np

from lockstep.engine.kernels.lanes import as_float, bytes_at, half_at, kernel, lookup, store
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets
from lockstep.engine.quants.codebooks import codebook

LAYOUT = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
SIZE = LAYOUT.itemsize
D, QS = offsets(LAYOUT)
VALUES = tuple(codebook("iq4_nl").view(np.int8).tolist())


class IQ4_NL(WeightFormat, name="IQ4_NL"):
    type_id = 20
    weights = 32
    layout = LAYOUT
    vec_dot_type = "Q8_0"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for block in range(raw.size // SIZE):
            start = SIZE * block
            d = half_at(raw, start + D)
            # byte i holds weight i (low nibble) and weight i + 16 (high nibble)
            q = bytes_at(raw, start + QS, 16)
            store(out, 32 * block, d * as_float(lookup(VALUES, q & 15)))
            store(out, 32 * block + 16, d * as_float(lookup(VALUES, q >> 4)))
