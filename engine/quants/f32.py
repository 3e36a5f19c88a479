"""F32: every weight as it is."""

import numpy as np
from numpy.typing import NDArray

from engine.quants import base


class F32(base.WeightFormat, name="F32"):
    type_id = 0
    weights = 1
    layout = np.dtype([("x", "<f4")])
    vec_dot_type = "F32"

    @staticmethod
    def decode(blocks: NDArray[np.void]) -> base.F32:
        return blocks["x"].astype(np.float32)[:, None]

    @staticmethod
    def round_activations(x: base.F32) -> base.F32:
        return x
