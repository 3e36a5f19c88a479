"""Scales packed into a few bytes."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from lockstep.engine.kernels.lanes import Lanes, compiled_as, kernel, uint32_at
from lockstep.engine.kernels.vectors import I8


@compiled_as
def bytes_of(typing: Any, word: Any) -> Any:
    """Return the 8 bytes of an integer, lowest first: lanes of 0 to 255."""
    lanes = Lanes("int", 8)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.zext(builder.bitcast(args[0], ir.VectorType(I8, 8)), lanes.vector)

    return lanes(types.int64), codegen


@kernel
def scales_and_minima(raw: NDArray[np.uint8], at: int) -> Any:
    """Return 8 scales and 8 minima of 6 bits each, from 12 bytes."""
    # four bytes at a time, because vector registers are needed elsewhere
    a, b, c = uint32_at(raw, at), uint32_at(raw, at + 4), uint32_at(raw, at + 8)
    # the last four have four bits in c, and the two bits above at the top of a and of b
    scales = c & 0x0F0F0F0F | a >> 2 & 0x30303030
    minima = c >> 4 & 0x0F0F0F0F | b >> 2 & 0x30303030
    return bytes_of(a & 0x3F3F3F3F | scales << 32), bytes_of(b & 0x3F3F3F3F | minima << 32)
