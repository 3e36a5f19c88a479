"""Q2_0: 64 weights in 18 bytes; weight = d * (q - 1); a byte holds four q of two bits."""

import numpy as np

from lockstep.engine.kernels.lanes import as_float, crumbs_of, half_at, kernel, store, uint32_at
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets

LAYOUT = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
SIZE = LAYOUT.itemsize
D, QS = offsets(LAYOUT)


class Q2_0(WeightFormat, name="Q2_0"):
    type_id = 42
    weights = 64
    layout = LAYOUT
    vec_dot_type = "Q8_0"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(raw.size // SIZE):
            d = half_at(raw, i * SIZE + D)
            for part in range(4):  # weights are stored from the lowest bits of a byte upwards
                q = crumbs_of(uint32_at(raw, i * SIZE + QS + 4 * part))
                store(out, 64 * i + 16 * part, d * as_float(q - 1))
