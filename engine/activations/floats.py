"""F32, F16 and BF16: activations as floats, rounded to nearest with ties to even."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.activations.base import X86, ActivationFormat, Converted
from engine.quants import base


class F32(ActivationFormat, name="F32"):
    type_id = 0
    layout = np.dtype("<f4")

    @classmethod
    def quantise(cls, x: base.F32, variant: str = X86) -> NDArray[Any]:
        return x

    @classmethod
    def read(cls, blocks: NDArray[Any]) -> Converted:
        return Converted(blocks.astype(np.float64))


class F16(ActivationFormat, name="F16"):
    type_id = 1
    layout = np.dtype("<f2")

    @classmethod
    def quantise(cls, x: base.F32, variant: str = X86) -> NDArray[Any]:
        with np.errstate(over="ignore"):  # beyond 65504 a half is infinite, in ggml too
            return x.astype("<f2")

    @classmethod
    def read(cls, blocks: NDArray[Any]) -> Converted:
        return Converted(blocks.astype(np.float64))


class BF16(ActivationFormat, name="BF16"):
    type_id = 30
    layout = np.dtype("<u2")  # the upper half of a float32

    @classmethod
    def quantise(cls, x: base.F32, variant: str = X86) -> NDArray[Any]:
        """ggml_compute_fp32_to_bf16; it sets the quiet bit of a NaN and keeps the payload."""
        bits = np.ascontiguousarray(x).view(np.uint32)
        nearest = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16
        quiet = (bits >> 16) | np.uint32(0x0040)
        return np.where(np.isnan(x), quiet, nearest).astype("<u2")

    @classmethod
    def read(cls, blocks: NDArray[Any]) -> Converted:
        wide = (blocks.astype(np.uint32) << 16).view(np.float32)
        return Converted(wide.astype(np.float64))
