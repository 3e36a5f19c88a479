"""A node of a ggml graph as it was computed, and the contract of what it should have computed.

A meaning takes a node and says, from the node's sources and parameters alone, what the result is in
float64 and how far an honest float32 implementation may be from it, with the reason. Arrays have
numpy's order: (ne3, ne2, ne1, ne0), contiguous, whatever strides the tensor had.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.types import type_by_name
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.near import F64, SMALLEST, U16, Expected, U
from lockstep.engine.quants.base import WeightFormat
from lockstep.engine.registry import import_members

PLAIN = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "I32": np.int32, "I64": np.int64}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Operand:
    """A tensor that a node read: its value, or where it lies in the model's file."""

    name: str
    type: str  # ggml's name
    ne: tuple[int, ...]  # all four, ggml's order
    value: NDArray[Any] | None  # of types that numpy lacks: bytes, (ne3, ne2, ne1, bytes of a row)
    weight: str = ""  # the tensor of the file that it is a view of, if `value` is None
    offset: int = 0  # in that tensor, bytes
    nb: tuple[int, ...] = ()  # strides in bytes, ggml's order
    producer: int = -1  # index of the node that computed it in the same graph; -1: a leaf


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Node:
    """One computed tensor of a graph."""

    step: int
    ubatch: int  # graphs computed before this one in the same step
    index: int  # nodes before this one in the same graph, views counted as well
    op: str  # as ggml_op_desc says: SILU, not UNARY
    name: str
    layer: int | None
    type: str
    ne: tuple[int, ...]
    params: NDArray[np.int32]  # the sixteen of ggml
    sources: tuple[Operand | None, ...]
    value: NDArray[Any]

    @property
    def place(self) -> tuple[int, int, int]:
        """Of all nodes of a run it alone is there."""
        return self.step, self.ubatch, self.index

    def floats(self) -> NDArray[np.float32]:
        """The parameters that are floats, in their places."""
        return self.params.view(np.float32)

    def source(self, i: int) -> Operand:
        found = self.sources[i] if i < len(self.sources) else None
        if found is None:
            raise Unsupported(f"{self.op} without source {i}")
        return found

    def optional(self, i: int) -> Operand | None:
        return self.sources[i] if i < len(self.sources) else None

    def wide(self, i: int) -> F64:
        """Source i in float64."""
        return wide(self.source(i))


Meaning = Callable[[Node, Build], Expected]
MEANINGS: dict[str, Meaning] = {}
EXACT = "a copy, or one correctly rounded operation: every bit is determined"


def meaning(*ops: str) -> Callable[[Meaning], Meaning]:
    """Register what ops of these names compute."""

    def add(function: Meaning) -> Meaning:
        for op in ops:
            if op in MEANINGS:
                raise TypeError(f"{op} already has a meaning")
            MEANINGS[op] = function
        return function

    return add


def expect(node: Node, build: Build) -> Expected:
    """Raises Unsupported for an op, or a form of one, that has no meaning here."""
    with np.errstate(all="ignore"):  # infinities and NaN flow as IEEE says
        return meaning_of(node.op)(node, build)


def meaning_of(op: str) -> Meaning:
    if not has_meaning(op):
        raise Unsupported(f"no semantics of {op}")
    return MEANINGS[op]


def has_meaning(op: str) -> bool:
    import_members("lockstep.engine.ops.ggml")
    return op in MEANINGS


def family_of(op: str) -> str:
    """The file that says what it means."""
    return meaning_of(op).__module__.rpartition(".")[2]


def layout(
    kind: str, ne: tuple[int, ...], nb: tuple[int, ...] | None = None
) -> tuple[np.dtype[Any], tuple[int, ...], tuple[int, ...] | None]:
    """How numpy sees a tensor of these sizes and strides: of types that it lacks, bytes of rows."""
    if kind in PLAIN:
        return np.dtype(PLAIN[kind]), tuple(reversed(ne)), nb and tuple(reversed(nb))
    known = type_by_name(kind)
    shape = (*reversed(ne[1:]), ne[0] // known.block * known.bytes)
    return np.dtype(np.uint8), shape, nb and (*reversed(nb[1:]), 1)


def wide(operand: Operand) -> F64:
    """Any operand in float64, decoded if its type is one of blocks."""
    if operand.value is None:
        raise Unsupported(f"{operand.name} was not captured")
    if operand.type in PLAIN:
        return operand.value.astype(np.float64)
    rows = WeightFormat.named(operand.type).dequantize(operand.value.reshape(-1))
    return rows.reshape(tuple(reversed(operand.ne))).astype(np.float64)


def single(value: F64, kind: str) -> NDArray[Any]:
    """What float32 arithmetic leaves of it, before it is stored; a node of F64 has none."""
    return value if kind == "F64" else value.astype(np.float32)


def settled(value: NDArray[Any], kind: str) -> NDArray[Any]:
    """Rounded to the node's type, as every result is in the end."""
    if kind not in PLAIN:
        raise Unsupported(f"a result of type {kind}")
    with np.errstate(over="ignore"):
        return value.astype(PLAIN[kind])


def rounding_of(kind: str) -> tuple[float, float]:
    """Unit roundoff of a type and half the distance of its subnormals."""
    if kind == "F16":
        return U16, 2.0**-25
    return U, SMALLEST


def relative(value: F64, roundings: float, reason: str, *, size: F64 | None = None) -> Expected:
    """A float32 result that is off by so many roundings of itself, or of `size`."""
    scale = np.abs(value) if size is None else size
    allowed = roundings * U * scale + U * np.abs(value) + SMALLEST
    return Expected(value, allowed, f"{reason}: {roundings:g} roundings and the one on its way out")


def like(small: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Repeated to a shape whose sizes are multiples of its own, as ggml broadcasts."""
    if small.shape == shape:
        return small
    return np.tile(small, tuple(n // m for n, m in zip(shape, small.shape, strict=True)))
