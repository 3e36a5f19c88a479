"""BF16: the upper half of a float32."""

import numpy as np

from lockstep.engine.kernels.lanes import brain_float_at, kernel
from lockstep.engine.quants.base import F32, Bytes, WeightFormat


class BF16(WeightFormat, name="BF16"):
    type_id = 30
    weights = 1
    layout = np.dtype([("x", "<u2")])
    vec_dot_type = "BF16"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(out.size):
            out[i] = brain_float_at(raw, 2 * i)
