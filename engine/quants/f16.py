"""F16: IEEE half precision."""

import numpy as np

from lockstep.engine.kernels.lanes import half_at, halves_at, kernel, store
from lockstep.engine.quants.base import F32, Bytes, WeightFormat


class F16(WeightFormat, name="F16"):
    type_id = 1
    weights = 1
    layout = np.dtype([("x", "<f2")])
    vec_dot_type = "F16"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        whole = out.size // 32 * 32
        for i in range(0, whole, 32):
            store(out, i, halves_at(raw, 2 * i, 32))
        for i in range(whole, out.size):
            out[i] = half_at(raw, 2 * i)
