"""The contract of the expected result of a node in a ggml graph.

A definition takes a node and returns its result in float64, computed only from its sources and
parameters. It also returns the allowed error of an honest float32 implementation, with the reason.
Arrays have numpy's order: (ne3, ne2, ne1, ne0), contiguous, whatever strides the tensor had.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.node import PLAIN, Node
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.near import F64, SMALLEST, U16, Expected, U
from lockstep.engine.registry import import_members

Meaning = Callable[[Node, Build], Expected]
MEANINGS: dict[str, Meaning] = {}
EXACT = "a copy, or one correctly rounded operation: every bit is determined"


def meaning(*ops: str) -> Callable[[Meaning], Meaning]:
    """Register the function that computes the ops of these names."""

    def add(function: Meaning) -> Meaning:
        for op in ops:
            if op in MEANINGS:
                raise TypeError(f"{op} already has a meaning")
            MEANINGS[op] = function
        return function

    return add


def expect(node: Node, build: Build) -> Expected:
    """Compute a node with its bound. Raises Unsupported for ops, or forms of ops, that are not
    defined here.
    """
    with np.errstate(all="ignore"):  # infinities and NaN follow IEEE 754
        return meaning_of(node.op)(node, build)


def meaning_of(op: str) -> Meaning:
    if not has_meaning(op):
        raise Unsupported(f"no semantics of {op}")
    return MEANINGS[op]


def has_meaning(op: str) -> bool:
    import_members("lockstep.engine.ops.ggml")
    return op in MEANINGS


def family_of(op: str) -> str:
    """Return the module that defines an op's meaning."""
    return meaning_of(op).__module__.rpartition(".")[2]


def single(value: F64, kind: str) -> NDArray[Any]:
    """Round to float32 as ggml's arithmetic does before storing; F64 nodes stay as they are."""
    return value if kind == "F64" else value.astype(np.float32)


def round_to_type(value: NDArray[Any], kind: str) -> NDArray[Any]:
    """Round to the node's type, which is the last rounding of every result."""
    if kind not in PLAIN:
        raise Unsupported(f"a result of type {kind} is not known here")
    with np.errstate(over="ignore"):
        return value.astype(PLAIN[kind])


def rounding_of(kind: str) -> tuple[float, float]:
    """Return the unit roundoff of a type, and half the distance between its subnormals."""
    if kind == "F16":
        return U16, 2.0**-25
    return U, SMALLEST


def relative(value: F64, roundings: float, reason: str, *, size: F64 | None = None) -> Expected:
    """Return a float32 result with a bound of `roundings` roundings of the value, or of `size`."""
    scale = np.abs(value) if size is None else size
    allowed = roundings * U * scale + U * np.abs(value) + SMALLEST
    return Expected(value, allowed, f"{reason}: {roundings:g} roundings and the one on its way out")


def like(small: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Repeat an array up to a shape whose sizes are multiples of its own, as ggml broadcasts."""
    if small.shape == shape:
        return small
    # an array without rows, as when no output is requested, is not repeated
    times = (n // m if m else 1 for n, m in zip(shape, small.shape, strict=True))
    return np.tile(small, tuple(times))
