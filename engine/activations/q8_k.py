"""Q8_K: blocks of 256 signed bytes with a float32 scale and a sum for every 16 bytes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.activations.base import X86, ActivationFormat, Converted
from lockstep.engine.kernels.largest import signed_largest
from lockstep.engine.quants.base import F32

# added to a small float, it leaves the nearest integer in the low bits
MAGIC = np.float32(1.5 * 2**23)


class Q8_KActivations(ActivationFormat, name="Q8_K"):
    type_id = 15
    block = 256
    summed = 16
    layout = np.dtype([("d", "<f4"), ("qs", "i1", 256), ("bsums", "<i2", 16)])

    @classmethod
    def quantise(cls, x: F32, variant: str = X86) -> NDArray[Any]:
        """Convert to Q8_K. The largest magnitude always becomes -127; d has the opposite sign of
        that activation.

        Source: quantize_row_q8_K_ref in ggml-quants.c, which is the same in every build. The code
        that converts four rows at a time, for repacked weights, gives equal values. ggml leaves the
        sums of a zero block uninitialised; here they are zeros. The scale is stored as float32.
        """
        blocks = cls.cut(x)
        made = np.zeros(blocks.shape[:-1], cls.layout)
        with np.errstate(all="ignore"):
            largest = signed_largest(blocks)
            some = largest != 0
            inverse = np.float32(-127) / largest
            whole = np.minimum(nearest_int(blocks * inverse[..., None]), 127)
            made["qs"] = np.where(some[..., None], whole, 0).astype(np.int8)
            made["d"] = np.where(some, np.float32(1) / inverse, np.float32(0))
        made["bsums"] = made["qs"].reshape(*made.shape, 16, 16).sum(axis=-1, dtype=np.int16)
        return made

    @classmethod
    def read(cls, blocks: NDArray[Any]) -> Converted:
        """Read blocks. The stored sums are ignored: d * bsums is exactly the sum of 16 values."""
        with np.errstate(invalid="ignore"):
            values = blocks["d"].astype(np.float64)[..., None] * blocks["qs"]
        return Converted(values.reshape(*blocks.shape[:-1], blocks.shape[-1] * cls.block))


def nearest_int(x: F32) -> NDArray[np.int32]:
    """Round to an integer, ties to even, as ggml-quants.c does: add a number so large that no
    fraction is left.
    """
    bits = (x + MAGIC).view(np.int32)
    return (bits & 0x007FFFFF) - 0x00400000
