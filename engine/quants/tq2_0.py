"""TQ2_0: 256 weights in 66 bytes; weight = d * (q - 1); a byte holds four q of two bits."""

import numpy as np

from lockstep.engine.kernels.lanes import as_float, bytes_at, half_at, kernel, store
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets

LAYOUT = np.dtype([("qs", "u1", 64), ("d", "<f2")])
SIZE = LAYOUT.itemsize
QS, D = offsets(LAYOUT)


class TQ2_0(WeightFormat, name="TQ2_0"):
    type_id = 35
    weights = 256
    layout = LAYOUT
    vec_dot_type = "Q8_K"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(raw.size // SIZE):
            d = half_at(raw, i * SIZE + D)
            for half in range(2):
                q = bytes_at(raw, i * SIZE + QS + 32 * half, 32)
                for pair in range(4):  # the lowest bits of 32 bytes, then the next bits, and so on
                    to = 256 * i + 128 * half + 32 * pair
                    store(out, to, d * as_float((q >> 2 * pair & 3) - 1))
