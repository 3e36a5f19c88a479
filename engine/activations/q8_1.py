"""Q8_1: Q8_0 with the sum of each block, for weights that have a minimum (Q4_1, Q5_1)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.activations.base import GENERIC, X86, ActivationFormat, Converted
from lockstep.engine.activations.q8_0 import (
    Q8_0Activations,
    fit_in_bytes,
    half,
    integers,
    pack_codes,
    steps,
)
from lockstep.engine.quants.base import F32


class Q8_1Activations(ActivationFormat, name="Q8_1"):
    type_id = 9
    block = 32
    summed = 32
    layout = np.dtype([("d", "<f2"), ("s", "<f2"), ("qs", "i1", 32)])

    @classmethod
    def quantise(cls, x: F32, variant: str = X86) -> NDArray[Any]:
        """Convert to Q8_1.

        s = d * (sum of qs), with d unrounded: an exact integer sum, one float32 product and one
        rounding to half. So s differs from the sum of the activations, and from the stored d times
        the sum.
        """
        whole, d = steps(cls.cut(x), variant)
        blocks = np.empty(d.shape, cls.layout)
        qs = pack_codes(whole, variant)
        # C code adds the bytes; vector code adds the integers before it packs them
        terms = qs if variant == GENERIC or fit_in_bytes(whole) else integers(whole)
        added = terms.sum(axis=-1, dtype=np.int32).astype(np.float32)
        with np.errstate(all="ignore"):
            blocks["d"], blocks["s"], blocks["qs"] = half(d), half(d * added), qs
        return blocks

    @classmethod
    def read(cls, blocks: NDArray[Any]) -> Converted:
        return Converted(Q8_0Activations.read(blocks).values, blocks["s"].astype(np.float64))
