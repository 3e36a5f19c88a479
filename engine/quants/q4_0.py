"""Q4_0: 32 weights in 18 bytes; weight = d * (nibble - 8)."""

import numpy as np

from lockstep.engine.kernels.lanes import as_float, bytes_at, half_at, kernel, store
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets

LAYOUT = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
SIZE = LAYOUT.itemsize
D, QS = offsets(LAYOUT)


class Q4_0(WeightFormat, name="Q4_0"):
    type_id = 2
    weights = 32
    layout = LAYOUT
    vec_dot_type = "Q8_0"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(raw.size // SIZE):
            d = half_at(raw, i * SIZE + D)
            q = bytes_at(raw, i * SIZE + QS, 16)
            # byte j holds weight j (low nibble) and weight j + 16 (high nibble)
            store(out, 32 * i, d * as_float((q & 15) - 8))
            store(out, 32 * i + 16, d * as_float((q >> 4) - 8))
