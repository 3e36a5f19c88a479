"""The contract of an activation format, and the two ways in which builds of ggml round.

ggml's generic C code and its vector code differ in two points. One is the factor: 127 / max, or the
reciprocal of max / 127. The other is the rounding of a value half-way between two steps. Each way
of rounding has a name here; `lockstep doctor` reports which way an installed library uses.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import InvalidModel
from lockstep.engine.quants.base import F32
from lockstep.engine.registry import Registered

F64 = NDArray[np.float64]
X86, GENERIC = "x86", "generic"
VARIANTS = (X86, GENERIC)
# further differences between builds, which Build.generic describes
AMX, HALVES = "AMX", "halves"


@dataclass(frozen=True, eq=False)
class Converted:
    """Activations as a product reads them."""

    values: F64  # (..., n)
    # (..., n / summed), if the format stores sums that differ from the values' sums
    sums: F64 | None = None


class ActivationFormat(Registered):
    """Format of activations. `summed`: number of activations in each sum that multiplies a minimum;
    0: the format has no sums.
    """

    type_id: ClassVar[int]
    block: ClassVar[int] = 1
    summed: ClassVar[int] = 0
    layout: ClassVar[np.dtype[Any]]

    @classmethod
    def quantise(cls, x: F32, variant: str = X86) -> NDArray[Any]:
        """Return the blocks that ggml makes of x, byte for byte. x: (..., n) -> (..., n /
        block)."""
        raise NotImplementedError

    @classmethod
    def read(cls, blocks: NDArray[Any]) -> Converted:
        """Return the decoded values of the blocks. Decoding does not round."""
        raise NotImplementedError

    @classmethod
    def convert(cls, x: F32, variant: str = X86) -> Converted:
        """Quantise x and decode the blocks again. x: (..., n)."""
        return cls.read(cls.quantise(x, variant))

    @classmethod
    def cut(cls, x: F32) -> F32:
        """Return x in blocks: (..., n) -> (..., n / block, block)."""
        blocks, rest = divmod(x.shape[-1], cls.block)
        if rest:
            raise InvalidModel(f"{x.shape[-1]} activations are not whole {cls.name} blocks "
                               f"of {cls.block}")  # fmt: skip
        return np.ascontiguousarray(x).reshape(*x.shape[:-1], blocks, cls.block)


def rounded_away(x: F32) -> F32:
    """Round half-way cases away from zero, like C's roundf."""
    whole = np.trunc(x)
    return np.where(
        np.abs(x - whole) >= np.float32(0.5), whole + np.copysign(np.float32(1), x), whole
    )
