"""A computed node of a ggml graph. Arrays have numpy's order, (ne3, ne2, ne1, ne0), and are
contiguous, whatever strides the tensor had.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.types import type_by_name
from lockstep.engine.quants.base import WeightFormat

F64 = NDArray[np.float64]
PLAIN = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "I32": np.int32, "I64": np.int64}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Operand:
    """A tensor that a node reads: its value, or its place in the model's file."""

    name: str
    type: str  # ggml's name of the type
    ne: tuple[int, ...]  # four sizes in ggml's order
    value: NDArray[Any] | None  # for types that numpy lacks: bytes, (ne3, ne2, ne1, bytes of a row)
    weight: str = ""  # name of the tensor in the file of which it is a view, if `value` is None
    offset: int = 0  # byte offset in that tensor
    nb: tuple[int, ...] = ()  # strides in bytes, in ggml's order
    producer: int = -1  # index of the node in the same graph that computed it; -1: a leaf


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Node:
    """Computed tensor of a graph."""

    step: int
    ubatch: int  # number of earlier graphs in the same step
    index: int  # number of earlier nodes in the same graph, including views
    op: str  # see ggml_op_desc: SILU instead of UNARY
    name: str
    layer: int | None
    type: str
    ne: tuple[int, ...]
    params: NDArray[np.int32]  # the sixteen parameters of ggml
    sources: tuple[Operand | None, ...]
    value: NDArray[Any]

    @property
    def place(self) -> tuple[int, int, int]:
        """Return the place of the node, unique among all nodes of a run."""
        return self.step, self.ubatch, self.index

    def floats(self) -> NDArray[np.float32]:
        """Return the parameters as floats, each at its index."""
        return self.params.view(np.float32)

    def source(self, i: int) -> Operand:
        found = self.sources[i] if i < len(self.sources) else None
        if found is None:
            raise Unsupported(f"{self.op} without source {i}")
        return found

    def optional(self, i: int) -> Operand | None:
        return self.sources[i] if i < len(self.sources) else None

    def wide(self, i: int) -> F64:
        """Return source i in float64."""
        return wide(self.source(i))


@lru_cache(maxsize=1 << 12)  # cached, because graphs have the same tensors in every run
def layout(
    kind: str, ne: tuple[int, ...], nb: tuple[int, ...] | None = None
) -> tuple[np.dtype[Any], tuple[int, ...], tuple[int, ...] | None]:
    """Return dtype, shape and strides of a tensor in numpy; types that numpy lacks are bytes."""
    if kind in PLAIN:
        return np.dtype(PLAIN[kind]), tuple(reversed(ne)), nb and tuple(reversed(nb))
    known = type_by_name(kind)
    shape = (*reversed(ne[1:]), ne[0] // known.block * known.bytes)
    return np.dtype(np.uint8), shape, nb and (*reversed(nb[1:]), 1)


def wide(operand: Operand) -> F64:
    """Return an operand in float64, with blocks decoded."""
    if operand.value is None:
        raise Unsupported(f"{operand.name} was not captured")
    if operand.type in PLAIN:
        with np.errstate(invalid="ignore"):  # a signalling NaN raises no warning
            return operand.value.astype(np.float64)
    rows = WeightFormat.member(operand.type).dequantize(operand.value.reshape(-1))
    return rows.reshape(tuple(reversed(operand.ne))).astype(np.float64)
