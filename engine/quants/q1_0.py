"""Q1_0: 128 weights in 18 bytes; weight = d if its bit is set, else -d."""

import numpy as np

from lockstep.engine.kernels.lanes import bits_of, half_at, kernel, store, uint32_at, where
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets

LAYOUT = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
SIZE = LAYOUT.itemsize
D, QS = offsets(LAYOUT)


class Q1_0(WeightFormat, name="Q1_0"):
    type_id = 41
    weights = 128
    layout = LAYOUT
    vec_dot_type = "Q8_0"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(raw.size // SIZE):
            d = half_at(raw, i * SIZE + D)
            for part in range(4):
                bits = bits_of(uint32_at(raw, i * SIZE + QS + 4 * part), 32)
                store(out, 128 * i + 32 * part, where(bits, d, -d))
