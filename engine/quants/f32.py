"""F32: weights stored without conversion."""

import numpy as np

from lockstep.engine.kernels.lanes import float_at, kernel
from lockstep.engine.quants import base


class F32(base.WeightFormat, name="F32"):
    type_id = 0
    weights = 1
    layout = np.dtype([("x", "<f4")])
    vec_dot_type = "F32"

    @staticmethod
    @kernel
    def unpack(raw: base.Bytes, out: base.F32) -> None:
        for i in range(out.size):
            out[i] = float_at(raw, 4 * i)
