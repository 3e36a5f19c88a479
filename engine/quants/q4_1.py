"""Q4_1: 32 weights in 20 bytes; weight = d * nibble + m."""

import numpy as np

from lockstep.engine.kernels.lanes import as_float, bytes_at, half_at, kernel, store
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets

LAYOUT = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])
SIZE = LAYOUT.itemsize
D, M, QS = offsets(LAYOUT)


class Q4_1(WeightFormat, name="Q4_1"):
    type_id = 3
    weights = 32
    layout = LAYOUT
    vec_dot_type = "Q8_1"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(raw.size // SIZE):
            d = half_at(raw, i * SIZE + D)
            m = half_at(raw, i * SIZE + M)
            q = bytes_at(raw, i * SIZE + QS, 16)
            # byte j holds weight j (low nibble) and weight j + 16 (high nibble)
            store(out, 32 * i, d * as_float(q & 15) + m)
            store(out, 32 * i + 16, d * as_float(q >> 4) + m)
