"""F16: IEEE half precision."""

import numpy as np
from numpy.typing import NDArray

from engine.quants.base import F32, WeightFormat


class F16(WeightFormat, name="F16"):
    type_id = 1
    weights = 1
    layout = np.dtype([("x", "<f2")])
    vec_dot_type = "F16"

    @staticmethod
    def decode(blocks: NDArray[np.void]) -> F32:
        return blocks["x"].astype(np.float32)[:, None]

    @staticmethod
    def round_activations(x: F32) -> F32:
        with np.errstate(over="ignore"):  # beyond 65504 a half is infinite, in ggml too
            return x.astype(np.float16).astype(np.float32)
