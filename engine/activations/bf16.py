"""BF16: activations rounded to the upper half of a float32, ties to even."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.activations.base import X86, ActivationFormat, Converted
from lockstep.engine.quants.base import F32


class BF16Activations(ActivationFormat, name="BF16"):
    type_id = 30
    layout = np.dtype("<u2")

    @classmethod
    def quantise(cls, x: F32, variant: str = X86) -> NDArray[Any]:
        """Convert as ggml_compute_fp32_to_bf16 does: it sets the quiet bit of a NaN and keeps the
        payload.
        """
        bits = np.ascontiguousarray(x).view(np.uint32)
        nearest = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16
        quiet = (bits >> 16) | np.uint32(0x0040)
        return np.where(np.isnan(x), quiet, nearest).astype("<u2")

    @classmethod
    def read(cls, blocks: NDArray[Any]) -> Converted:
        wide = (blocks.astype(np.uint32) << 16).view(np.float32)
        return Converted(wide.astype(np.float64))
