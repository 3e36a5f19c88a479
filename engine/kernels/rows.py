"""Rows of a matrix that are decoded one at a time, and used while they are in the cache.

Each is decoded by the `unpack` of its format. The contribution of minima to a part of a row is
found by decoding it with other fields zero: its bytes are masked first.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.kernels.compiled import compile_kernel
from lockstep.engine.kernels.lanes import half_at, kernel
from lockstep.engine.kernels.raw_bytes import prefetch
from lockstep.engine.kernels.unpacking import unpack_at


def in_any_order(function: Any) -> Any:
    """Compile for sums in any order; BLAS promises no order either."""
    return compile_kernel(
        function, nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy"
    )


@in_any_order
def dot(a: NDArray[np.float64], w: NDArray[np.float32]) -> float:
    s = 0.0
    for i in range(len(a)):
        s += a[i] * np.float64(w[i])
    return s


@in_any_order
def size(a: NDArray[np.float64], w: NDArray[np.float32]) -> float:
    s = 0.0
    for i in range(len(a)):
        s += abs(a[i] * np.float64(w[i]))
    return s


@in_any_order
def both(a: NDArray[np.float64], w: NDArray[np.float32]) -> tuple[float, float]:
    s, z = 0.0, 0.0
    for i in range(len(a)):
        product = a[i] * np.float64(w[i])
        s += product
        z += abs(product)
    return s, z


@kernel
def decode(
    unpack: int,
    row: NDArray[np.uint8],
    mask: NDArray[np.uint8],
    half: int,
    stride: int,
    n: int,
    masked: NDArray[np.uint8],
    out: NDArray[np.float32],
) -> None:
    """Decode n numbers of a row, see `add_products`; masked: a buffer for the masked bytes, or
    empty to use all bytes."""
    if half >= 0:
        for i in range(n):
            out[i] = half_at(row, i * (row.size // n) + half)
        return
    if len(masked):
        for i in range(row.size):
            masked[i] = row[i] & mask[i]
        unpack_at(unpack, masked, out)
    else:
        unpack_at(unpack, row, out)
    if stride > 1:
        for i in range(n):
            out[i] = out[i * stride]


@kernel
def add_products(
    unpack: int,
    raw: NDArray[np.uint8],
    mask: NDArray[np.uint8],
    half: int,
    stride: int,
    left: NDArray[np.float64],
    value: NDArray[np.float64],
    sizes: NDArray[np.float64],
    times: float,
) -> None:
    """Add the products to value, and `times` the sums of their magnitudes to sizes, unless it is
    empty.

    unpack: a pointer to it; raw: whole rows; mask: the bits kept of the bytes of each; half: where
    in a block the number is that is meant, or -1: weights are, of a row's each `stride`th; left:
    (tokens, these); value, sizes: (rows, tokens).
    """
    tokens, n = left.shape
    size_of_row = mask.size
    whole = True
    for i in range(size_of_row):
        whole &= mask[i] == 255
    masked = np.empty(0 if whole else size_of_row, np.uint8)
    w = np.empty(n * stride, np.float32)
    for r in range(max(len(value), len(sizes))):
        row = raw[r * size_of_row : (r + 1) * size_of_row]
        prefetch(raw, r * size_of_row, size_of_row)
        decode(unpack, row, mask, half, stride, n, masked, w)
        for t in range(tokens):
            if len(value) and len(sizes):
                product, magnitude = both(left[t], w)
                value[r, t] += product
                sizes[r, t] += times * magnitude
            elif len(value):
                value[r, t] += dot(left[t], w)
            else:
                sizes[r, t] += times * size(left[t], w)
