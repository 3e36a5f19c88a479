"""Q8_0: 32 weights in 34 bytes; weight = d * q."""

import numpy as np

from lockstep.engine.kernels.lanes import as_float, half_at, kernel, signed_bytes_at, store
from lockstep.engine.quants.base import F32, Bytes, WeightFormat, offsets

LAYOUT = np.dtype([("d", "<f2"), ("qs", "i1", 32)])
SIZE = LAYOUT.itemsize
D, QS = offsets(LAYOUT)


class Q8_0(WeightFormat, name="Q8_0"):
    type_id = 8
    weights = 32
    layout = LAYOUT
    vec_dot_type = "Q8_0"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(raw.size // SIZE):
            d = half_at(raw, i * SIZE + D)
            q = signed_bytes_at(raw, i * SIZE + QS, 32)
            store(out, 32 * i, d * as_float(q))
