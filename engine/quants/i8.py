"""I8: signed integers of 8 bits.

llama.cpp reads such tensors but has no decoder (`to_float`) for them. This decoder is exact.
"""

import numpy as np

from lockstep.engine.kernels.lanes import kernel, signed_byte_at
from lockstep.engine.quants.base import F32, NO_PRODUCT, Bytes, WeightFormat


class I8(WeightFormat, name="I8"):
    type_id = 24
    weights = 1
    layout = np.dtype([("x", "i1")])
    vec_dot_type = NO_PRODUCT

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(out.size):
            out[i] = signed_byte_at(raw, i)
