"""Keys and values in a quantised cache: blocks of codes. The dtype of an array identifies its type.

If the size of a head is a multiple of 64, llama.cpp multiplies the head by a Hadamard matrix before
storing it. Then no element is much larger than the others. Source: llama-kv-cache.cpp of
llama-cpp-python 0.3.36.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.activations.base import F64
from lockstep.engine.errors import Unsupported
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.stored import STORED, store_rows
from lockstep.engine.quants.base import F32, WeightFormat

TURNED = 64  # size of the smallest matrix that rotates heads
BUILD = Build(lanes=1, bounds=False)  # only its rounding of Q8_0 is used


@cache
def layouts() -> dict[np.dtype[Any], type[WeightFormat]]:
    """Return the types of a cache by the dtype of their blocks."""
    return {WeightFormat.member(kind).layout: WeightFormat.member(kind) for kind in STORED}


def is_coded(stored: NDArray[Any]) -> bool:
    return stored.dtype.names is not None


def format_of(stored: NDArray[Any]) -> type[WeightFormat]:
    return layouts()[stored.dtype]


def width_of(stored: NDArray[Any]) -> int:
    """Return the number of elements of a row."""
    per_block = format_of(stored).weights if is_coded(stored) else 1
    return int(stored.shape[-1]) * per_block


def empty_cells(kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return zeros of this type: shape (..., dim), stored as (..., blocks of a row). Raises
    Unsupported.
    """
    coded = WeightFormat.member(kind)
    blocks, rest = divmod(shape[-1], coded.weights)
    if rest:
        text = f"a {kind} cache needs heads of a multiple of {coded.weights} elements"
        raise Unsupported(f"{text}, but the model's heads have {shape[-1]}")
    return np.zeros((*shape[:-1], blocks), coded.layout)


def encode(rows: F32, like: NDArray[Any]) -> NDArray[Any]:
    """Encode rows. rows: (..., dim) -> blocks of the dtype of `like`: (..., blocks)."""
    _, _, raw = store_rows(np.ascontiguousarray(rows), format_of(like).name, BUILD)
    return raw.view(like.dtype)


def decode(stored: NDArray[Any]) -> NDArray[Any]:
    """Return decoded floats: (..., dim). Arrays of floats are returned unchanged."""
    if not is_coded(stored):
        return stored
    raw = np.ascontiguousarray(stored).view(np.uint8).reshape(-1)
    return format_of(stored).dequantize(raw).reshape(*stored.shape[:-1], -1)


def turning(stored: NDArray[Any], *, whole: bool) -> int:
    """Return the size of the Hadamard matrix for these rows; 0: no matrix.

    whole: True for keys, which use the largest matrix that divides a row; values use the smallest.
    """
    if not is_coded(stored) or format_of(stored).weights == 1 or width_of(stored) % TURNED:
        return 0
    size = TURNED
    while whole and width_of(stored) % (2 * size) == 0:
        size *= 2
    return size


@cache
def hadamard(size: int) -> F64:
    """Return the orthonormal matrix, which is its own inverse: (size, size)."""
    found = np.ones((1, 1))
    while len(found) < size:
        found = np.block([[found, found], [found, -found]])
    return (found.astype(np.float32) * np.float32(1 / np.sqrt(np.float32(size)))).astype(np.float64)


def turn(rows: F32, size: int) -> F32:
    """Multiply each run of `size` elements by the matrix; 0 leaves the rows as they are. rows:
    (..., dim)."""
    if not size:
        return rows
    runs = rows.reshape(*rows.shape[:-1], -1, size).astype(np.float64)
    return (runs @ hadamard(size)).astype(np.float32).reshape(rows.shape)
