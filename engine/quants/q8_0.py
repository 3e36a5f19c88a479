"""Q8_0: 32 weights in 34 bytes; weight = d * q."""

import numpy as np
from numpy.typing import NDArray

from engine.quants.base import F32, WeightFormat


class Q8_0(WeightFormat, name="Q8_0"):
    type_id = 8
    weights = 32
    layout = np.dtype([("d", "<f2"), ("qs", "i1", 32)])
    vec_dot_type = "Q8_0"

    @staticmethod
    def decode(blocks: NDArray[np.void]) -> F32:
        d = blocks["d"].astype(np.float32)[:, None]
        return d * blocks["qs"].astype(np.float32)

    @staticmethod
    def round_activations(x: F32) -> F32:
        """As quantize_row_q8_0 of ggml-cpu's x86 code does it (llama.cpp of llama-cpp-python 0.3.36).

        The quantiser multiplies by 127 / max and rounds ties to even, whereas the scale that is
        stored is max / 127 rounded to a half: the two are not exact inverses, on purpose here too.
        """
        blocks = x.reshape(*x.shape[:-1], -1, 32)
        largest = np.abs(blocks).max(axis=-1, keepdims=True)
        with np.errstate(divide="ignore", over="ignore"):
            inverse = np.where(largest > 0, np.float32(127) / largest, np.float32(0))
            d = (largest / np.float32(127)).astype(np.float16).astype(np.float32)
        return (np.rint(blocks * inverse) * d).reshape(x.shape)
