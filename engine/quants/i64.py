"""I64: signed integers of 64 bits.

llama.cpp reads such tensors but has no decoder (`to_float`) for them. This decoder rounds numbers
of more than 24 bits to nearest, ties to even.
"""

import numpy as np

from lockstep.engine.kernels.lanes import int64_at, kernel
from lockstep.engine.quants.base import F32, NO_PRODUCT, Bytes, WeightFormat


class I64(WeightFormat, name="I64"):
    type_id = 27
    weights = 1
    layout = np.dtype([("x", "<i8")])
    vec_dot_type = NO_PRODUCT

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(out.size):
            out[i] = int64_at(raw, 8 * i)
