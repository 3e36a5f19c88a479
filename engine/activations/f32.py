"""F32: activations as they are."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.activations.base import X86, ActivationFormat, Converted
from lockstep.engine.quants import base


class F32Activations(ActivationFormat, name="F32"):
    type_id = 0
    layout = np.dtype("<f4")

    @classmethod
    def quantise(cls, x: base.F32, variant: str = X86) -> NDArray[Any]:
        return x

    @classmethod
    def read(cls, blocks: NDArray[Any]) -> Converted:
        return Converted(blocks.astype(np.float64))
