"""F16: activations rounded to half precision, ties to even."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.activations.base import X86, ActivationFormat, Converted
from lockstep.engine.quants.base import F32


class F16Activations(ActivationFormat, name="F16"):
    type_id = 1
    layout = np.dtype("<f2")

    @classmethod
    def quantise(cls, x: F32, variant: str = X86) -> NDArray[Any]:
        with np.errstate(over="ignore"):  # beyond 65504, an F16 number is infinite, as in ggml
            return x.astype("<f2")

    @classmethod
    def read(cls, blocks: NDArray[Any]) -> Converted:
        return Converted(blocks.astype(np.float64))
