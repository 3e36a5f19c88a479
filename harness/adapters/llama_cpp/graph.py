"""A node of llama.cpp's graph while the graph exists, with views of its values in our shapes."""

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.adapters.llama_cpp.lib import GgmlTensor

DTYPES: dict[int, np.dtype[Any]] = {  # by ggml's type id
    0: np.dtype(np.float32),
    1: np.dtype(np.float16),
    26: np.dtype(np.int32),
    27: np.dtype(np.int64),
}
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class LiveNode:
    """A tensor of the graph. It is valid only while the graph exists."""

    ggml: ctypes.CDLL
    address: int
    tensor: GgmlTensor

    @classmethod
    def at(cls, ggml: ctypes.CDLL, address: int) -> "LiveNode":
        return cls(ggml, address, GgmlTensor.from_address(address))

    @property
    def name(self) -> str:
        return str(self.tensor.name.decode(errors="replace"))

    @property
    def op(self) -> str:
        return str(self.ggml.ggml_op_name(self.tensor.op).decode())

    def source(self, i: int) -> "LiveNode":
        if not self.tensor.src[i]:
            raise LookupError(f"llama.cpp's {self.op} {self.name!r} has no source {i}")
        return LiveNode.at(self.ggml, self.tensor.src[i])

    @property
    def root(self) -> "LiveNode":
        """Return the tensor that this tensor is a view of, or itself. For a view of cells, this is
        the cache."""
        return LiveNode.at(self.ggml, self.tensor.view_src) if self.tensor.view_src else self

    @property
    def ne(self) -> tuple[int, ...]:
        return tuple(self.tensor.ne)

    def values(self) -> Array:
        """Return a view of the tensor's memory with four dimensions, the slowest first. Blocks, as
        in a quantised cache, are decoded by ggml into a copy, so writing to them changes
        nothing."""
        dtype = DTYPES.get(self.tensor.type)
        if dtype is None:
            return self.decode()
        return self.memory(dtype, tuple(reversed(self.tensor.ne)), self.tensor.nb[0])

    def memory(self, dtype: np.dtype[Any], shape: tuple[int, ...], stride: int) -> Array:
        """Return an array on the tensor's memory. stride: the bytes from one element of the last
        dimension to the next."""
        if 0 in shape:
            return np.empty(shape, dtype)
        memory = (ctypes.c_ubyte * self.ggml.ggml_nbytes(self.address)).from_address(
            self.tensor.data
        )
        strides = (*reversed(self.tensor.nb[1:]), stride)
        return np.ndarray(shape, dtype, buffer=memory, strides=strides)

    def decode(self) -> Array:
        traits = self.ggml.ggml_get_type_traits(self.tensor.type).contents
        whole = self.tensor.nb[0] == traits.block_bytes
        if not (traits.to_float and whole):
            raise LookupError(f"llama.cpp's {self.name!r} has ggml's type {self.tensor.type}")
        n, *others = self.tensor.ne
        n_bytes = n // traits.block_weights * traits.block_bytes
        raw = self.memory(np.dtype(np.uint8), (*reversed(others), n_bytes), 1)
        raw = np.ascontiguousarray(raw)
        out = np.empty(tuple(reversed(self.tensor.ne)), np.float32)
        traits.to_float(raw.ctypes.data, out.ctypes.data, out.size)
        out.flags.writeable = False
        return out


def rows(node: LiveNode, _: int) -> Array:
    return node.values()[0, 0, :, :]


def heads(node: LiveNode, _: int) -> Array:
    return node.values()[0, :, :, :]


def heads_side_by_side(node: LiveNode, _: int) -> Array:
    _, tokens, n_head, size = node.values().shape
    return node.values().reshape(tokens, n_head * size)


def column(node: LiveNode, _: int) -> Array:
    return node.values()[0, :, :, 0]  # (tokens, used, 1) without the last axis


def used_cells(node: LiveNode, cells: int) -> Array:
    """Return the values of the cells in use. llama.cpp pads the number of cells to a multiple of
    256."""
    return node.values()[0, :, :, :cells]  # (heads, tokens, cells)


def cells_first(node: LiveNode, cells: int) -> Array:
    return node.values()[0, :, :cells, :].transpose(1, 0, 2)  # from (kv_heads, cells, head_dim)


def cells_last(node: LiveNode, cells: int) -> Array:
    return node.values()[0, :, :, :cells].transpose(2, 0, 1)  # from (kv_heads, head_dim, cells)
