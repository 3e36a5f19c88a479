"""BF16: the upper half of a float32."""

import numpy as np

from engine.quants.base import F32, Bytes, WeightFormat
from engine.quants.lanes import brain_float_at, kernel


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

    @staticmethod
    def round_activations(x: F32) -> F32:
        """To nearest, ties to even; ggml_compute_fp32_to_bf16 sets the quiet bit of a NaN."""
        bits = np.ascontiguousarray(x).view(np.uint32)
        rounded = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) & np.uint32(0xFFFF0000)
        quiet = (bits & np.uint32(0xFFFF0000)) | np.uint32(0x00400000)
        return np.where(np.isnan(x), quiet, rounded).astype(np.uint32).view(np.float32)
