"""Keys and values in cells, layer by layer. Both are rounded to a storage type."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.ops.coded import decode, empty_cells, encode, is_coded, turn, turning
from lockstep.engine.ops.ggml.stored import STORED
from lockstep.engine.quants.base import F32

STORAGE: dict[str, type[np.floating[Any]]] = {"F32": np.float32, "F16": np.float16}
Index = NDArray[np.intp]
Kept = dict[int, tuple[NDArray[Any], NDArray[Any]]]  # by layer: keys and values of some cells
# arguments: layer; keys (cells, kv_heads, dim); number of positions by which each key moves
Rotate = Callable[[int, F32, NDArray[np.int32]], F32]


@dataclass(frozen=True)
class KeysValues:
    """Sizes of the keys and values that an attention layer keeps for a token.

    window: number of positions that a token sees, itself included; 0: all positions up to its own.
    """

    n_head_kv: int
    n_embd_head_k: int
    n_embd_head_v: int
    window: int = 0


def cells_of(kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return zeros for (cells, kv_heads, dim). Raises Unsupported."""
    if kind in STORAGE:
        return np.zeros(shape, STORAGE[kind])
    if kind in STORED:
        return empty_cells(kind, shape)
    known = ", ".join((*STORAGE, *STORED))
    raise Unsupported(f"no cache storage type {kind!r} (known: {known})")


def as_stored(rows: F32, like: NDArray[Any]) -> NDArray[Any]:
    """Round floats to the type of the cells; a half becomes infinite beyond 65504."""
    return encode(rows, like) if is_coded(like) else rows.astype(like.dtype)


def never(layer: int, keys: F32, deltas: NDArray[np.int32]) -> F32:
    """Return the keys unchanged, for a model whose keys do not depend on positions."""
    return keys


@dataclass(frozen=True)
class Numbers:
    """Keys and values that a memory of attention keeps, and their types.

    Without layers, the memory keeps only positions.
    """

    layers: Mapping[int, KeysValues]
    type_k: str = "F32"
    type_v: str = "F32"
    rotate: Rotate = never

    def of(self, layers: Mapping[int, KeysValues]) -> "Numbers":
        return Numbers(layers, self.type_k, self.type_v, self.rotate)


NONE = Numbers({})


def in_a_row(cells: Index) -> Index | slice:
    """Return the cells as a slice if they are consecutive."""
    if len(cells) and cells[-1] - cells[0] == len(cells) - 1 and (cells[1:] > cells[:-1]).all():
        return slice(int(cells[0]), int(cells[-1]) + 1)
    return cells


class Store:
    """Keys and values of each layer: (cells, kv_heads, dim)."""

    def __init__(self, numbers: Numbers, n_cells: int) -> None:
        self.rotate = numbers.rotate
        # all layers read and write the same cells
        self.last: deque[tuple[Index, Index | slice]] = deque(maxlen=2)
        self.keys: dict[int, NDArray[Any]] = {}
        self.values: dict[int, NDArray[Any]] = {}
        for layer, kept in numbers.layers.items():
            shape = n_cells, kept.n_head_kv
            self.keys[layer] = cells_of(numbers.type_k, (*shape, kept.n_embd_head_k))
            self.values[layer] = cells_of(numbers.type_v, (*shape, kept.n_embd_head_v))

    def place(self, cells: Index) -> Index | slice:
        """Return the cells as a slice if they are consecutive, so that reading long caches copies
        nothing."""
        for known, found in self.last:
            if known is cells:
                return found
        self.last.append((cells, in_a_row(cells)))
        return self.last[-1][1]

    def write(self, layer: int, cells: Index, k: F32, v: F32) -> None:
        """Store keys and values (tokens, kv_heads, dim), rounded to the storage types."""
        at = self.place(cells)
        with np.errstate(over="ignore"):
            self.keys[layer][at] = as_stored(k, self.keys[layer])
            self.values[layer][at] = as_stored(v, self.values[layer])

    def read(self, layer: int, cells: Index) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return keys and values as stored: (cells, kv_heads, dim) each."""
        at = self.place(cells)
        return self.keys[layer][at], self.values[layer][at]

    def get(self, cells: Index, deltas: NDArray[np.int32]) -> Kept:
        """Return keys and values of every layer, with keys rotated by the deltas."""
        kept, moved = {}, np.flatnonzero(deltas)
        for layer in self.keys:
            keys, values = self.read(layer, cells)
            kept[layer] = keys.copy(), values.copy()
        for layer, (keys, _) in kept.items() if len(moved) else ():
            size = turning(keys, whole=True)
            plain = turn(decode(keys[moved]), size)
            rotated = self.rotate(layer, plain, deltas[moved])
            keys[moved] = as_stored(turn(rotated, size), keys)
        return kept

    def hadamard_sizes(self, layer: int) -> tuple[int, int]:
        """Return the sizes of the Hadamard matrices that rotate keys and values; 0: no rotation."""
        return turning(self.keys[layer], whole=True), turning(self.values[layer], whole=False)

    def put(self, cells: Index, kept: Kept) -> None:
        for layer, (keys, values) in kept.items():
            self.keys[layer][cells], self.values[layer][cells] = keys, values

    def turn(self, cells: Index, deltas: NDArray[np.int32]) -> None:
        """Rotate stored keys further, if their tokens have moved."""
        self.put(cells, self.get(cells, deltas))
