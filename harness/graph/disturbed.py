"""Values changed by a random share of their allowed error."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.kernels.compiled import compile_kernel
from lockstep.engine.ops.near import F64

WHOLE = 2.0**24  # all larger float32 values are whole numbers


def disturb_values(value: F64, allowed: F64, drawn: NDArray[Any]) -> F64:
    """Return the values with random errors. value: a flat array; drawn: 64 random bits for each
    value; allowed: a limit for each value, or one limit for all values."""
    out = value.copy()
    disturb(out, allowed.reshape(-1), drawn)
    return out


@compile_kernel
def disturb(out: F64, allowed: F64, drawn: NDArray[Any]) -> None:
    """Add random errors to a node's values. Whole numbers in floats, such as indices, are exact, so
    they stay unchanged. Infinite values stay unchanged too."""
    one = allowed.size == 1
    for i in range(out.size):
        share = float(drawn[i] >> np.uint64(11)) * 2.0**-52 - 1.0
        off = share * allowed[0 if one else i]
        whole = out[i] == np.rint(out[i]) and abs(out[i]) < WHOLE
        if not whole and off == off:
            out[i] += off
