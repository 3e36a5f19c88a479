"""I16: signed integers of 16 bits.

llama.cpp reads such tensors but has no decoder (`to_float`) for them. This decoder is exact.
"""

import numpy as np

from lockstep.engine.kernels.lanes import int16_at, kernel
from lockstep.engine.quants.base import F32, NO_PRODUCT, Bytes, WeightFormat


class I16(WeightFormat, name="I16"):
    type_id = 25
    weights = 1
    layout = np.dtype([("x", "<i2")])
    vec_dot_type = NO_PRODUCT

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(out.size):
            out[i] = int16_at(raw, 2 * i)
