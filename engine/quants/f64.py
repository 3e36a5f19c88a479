"""F64: IEEE double precision.

llama.cpp reads such tensors but has no decoder (`to_float`) for them. This decoder rounds to
nearest, ties to even.
"""

import numpy as np

from lockstep.engine.kernels.lanes import double_at, kernel
from lockstep.engine.quants.base import F32, NO_PRODUCT, Bytes, WeightFormat


class F64(WeightFormat, name="F64"):
    type_id = 28
    weights = 1
    layout = np.dtype([("x", "<f8")])
    vec_dot_type = NO_PRODUCT

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(out.size):
            out[i] = double_at(raw, 8 * i)
