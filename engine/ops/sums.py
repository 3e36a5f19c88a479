"""Products of matrices with a fixed order of additions, for the same bits on every CPU."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.kernels.compiled import compile_kernel

TILE = 32  # columns of the right matrix that are summed at once
DEPTH = 256  # rows of the right matrix that are copied at once
AT_ONCE = 4  # terms that are added before a sum is stored


def in_order(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Multiply as np.matmul does, but add the terms of each element in order, starting at zero."""
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    kind = np.result_type(a, b)
    out = np.zeros((*shape, a.shape[-2], b.shape[-1]), kind)
    left, right = (
        np.broadcast_to(x.astype(kind, copy=False), (*shape, *x.shape[-2:])) for x in (a, b)
    )
    for place in np.ndindex(shape):
        add_products(np.ascontiguousarray(left[place]), right[place], out[place])
    return out


@compile_kernel
def add_products(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> None:
    """Add products in the order of the terms. a: (rows, terms), b: (terms, columns) -> out: (rows,
    columns), initially zeros.

    Without fastmath, nothing is fused or reordered, however wide the CPU's vectors are.
    """
    rows, terms = a.shape
    columns = b.shape[1]
    tile = np.zeros((DEPTH, TILE), out.dtype)
    for first in range(0, columns, TILE):
        width = min(TILE, columns - first)
        sums = np.zeros((rows, TILE), out.dtype)
        for begin in range(0, terms, DEPTH):
            depth = min(DEPTH, terms - begin)
            for j in range(width):
                for k in range(depth):
                    tile[k, j] = b[begin + k, first + j]
            whole = depth // AT_ONCE * AT_ONCE
            for i in range(rows):
                for k in range(0, whole, AT_ONCE):
                    w, x = a[i, begin + k], a[i, begin + k + 1]
                    y, z = a[i, begin + k + 2], a[i, begin + k + 3]
                    for j in range(TILE):
                        s = sums[i, j] + w * tile[k, j]
                        s = s + x * tile[k + 1, j]
                        s = s + y * tile[k + 2, j]
                        sums[i, j] = s + z * tile[k + 3, j]
                for k in range(whole, depth):
                    for j in range(TILE):
                        sums[i, j] += a[i, begin + k] * tile[k, j]
        out[:, first : first + width] = sums[:, :width]
