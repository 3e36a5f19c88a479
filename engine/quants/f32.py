"""F32: every weight as it is."""

import numpy as np
from numpy.typing import NDArray

from engine.quants.base import F32 as Floats
from engine.quants.base import WeightFormat


class F32(WeightFormat, name="F32"):
    type_id = 0
    weights = 1
    layout = np.dtype([("x", "<f4")])
    vec_dot_type = "F32"

    @staticmethod
    def decode(blocks: NDArray[np.void]) -> Floats:
        return blocks["x"].astype(np.float32)[:, None]

    @staticmethod
    def round_activations(x: Floats) -> Floats:
        return x
