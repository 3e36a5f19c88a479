"""Nodes made by hand, for the tests of what ops mean."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.ops.ggml.base import Build, Expected, Node, Operand, expect

BUILD = Build(lanes=16)
TYPES = {"float32": "F32", "float16": "F16", "int32": "I32", "int64": "I64"}


def four(value: Any) -> NDArray[Any]:
    array = np.asarray(value)
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def operand(value: Any, name: str = "x") -> Operand:
    array = four(value)
    return Operand(
        name=name, type=TYPES[array.dtype.name], ne=tuple(reversed(array.shape)), value=array
    )


def params(*values: float) -> NDArray[np.int32]:
    """Integers as they are, floats by their bits."""
    held = np.zeros(16, np.int32)
    for i, value in enumerate(values):
        held[i] = np.float32(value).view(np.int32) if isinstance(value, float) else value
    return held


def node(op: str, result: Any, *sources: Any, held: NDArray[np.int32] | None = None) -> Node:
    value = four(result)
    return Node(
        step=0,
        ubatch=0,
        index=5,
        op=op,
        name=f"{op.lower()}-1",
        layer=1,
        type=TYPES[value.dtype.name],
        ne=tuple(reversed(value.shape)),
        params=params() if held is None else held,
        sources=tuple(None if s is None else operand(s) for s in sources),
        value=value,
    )


def expected(op: str, result: Any, *sources: Any, held: Any = None) -> Expected:
    return expect(node(op, result, *sources, held=held), BUILD)


def normal(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
