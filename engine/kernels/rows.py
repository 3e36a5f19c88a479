"""Products with rows of a matrix, each decoded just before its use, so that it stays in the cache.

The `unpack` of the format decodes a row. To compute the part that minima contribute, the row's
bytes are masked first, so that all other fields of the row are zero.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.kernels.compiled import compile_kernel
from lockstep.engine.kernels.lanes import half_at, kernel
from lockstep.engine.kernels.raw_bytes import prefetch
from lockstep.engine.kernels.unpacking import unpack_at


def in_any_order(function: Any) -> Any:
    """Compile a function whose sums may be added in any order, as in BLAS."""
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
    """Decode n numbers of a row, with the arguments of `add_products`. masked: a buffer for the
    masked bytes, or empty to use all bytes.
    """
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
    """Add the products to `value`, and `times` the sums of their magnitudes to `sizes`. If one of
    the two arrays is empty, it is skipped.

    unpack: address of the format's decoder; raw: whole rows; mask: the bits to keep of a row's
    bytes; half: offset in each block of a half that is the factor, or -1 to decode weights and use
    every `stride`-th of them; left: (tokens, used numbers of a row); value, sizes: (rows, tokens).
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
