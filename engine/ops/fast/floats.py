"""Products with float weights: 16 partial sums side by side, added up as a tree."""

from typing import Any

import numpy as np
from numba import types

from lockstep.engine.kernels.dots import total
from lockstep.engine.kernels.lanes import floats_at, spread
from lockstep.engine.kernels.pointers import call
from lockstep.engine.kernels.stamped import kernel
from lockstep.engine.quants.base import F32, Bytes

KINDS = types.Array(types.uint8, 1, "C", readonly=True), types.Array(types.float32, 1, "C")
# each row has several partial sums, so that additions need not wait for each other
ROWS, LANES = 4, 16
ZERO = np.float32(0)


@kernel
def products(
    unpack: int, raw: Bytes, row_bytes: int, x: F32, out: F32, start: int, stop: int
) -> None:
    """Multiply by stored weights. x: (tokens, columns), out: (tokens, rows); unpack: the address of
    the decoder."""
    columns = x.shape[1]
    whole, flat = columns // LANES * LANES, x.reshape(-1)
    w = np.zeros(ROWS * columns, np.float32)
    for r in range(start, stop, ROWS):
        n = min(ROWS, stop - r)
        call(unpack, (raw[r * row_bytes : (r + n) * row_bytes], w[: n * columns]))
        for t in range(x.shape[0]):
            at, sums = t * columns, dots(flat, t * columns, w, columns, whole)
            for j in range(n):
                s = sums[j]
                for i in range(whole, columns):
                    s += flat[at + i] * w[j * columns + i]
                out[t, r + j] = s


@kernel
def dots(x: F32, at: int, w: F32, columns: int, whole: int) -> Any:
    a = b = c = d = spread(ZERO, 16)
    for i in range(0, whole, LANES):
        y = floats_at(x, at + i, 16)
        a = a + y * floats_at(w, i, 16)
        b = b + y * floats_at(w, columns + i, 16)
        c = c + y * floats_at(w, 2 * columns + i, 16)
        d = d + y * floats_at(w, 3 * columns + i, 16)
    return total(a), total(b), total(c), total(d)
