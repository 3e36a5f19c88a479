"""GELU from ggml's tables, and the gated linear units.

ggml looks GELU up in a table of halves, by the argument rounded to half: so the result is a half,
and an honest table may hold the neighbouring one only where the value lies between two halves.
Source: ggml-cpu/vec.h and ops.cpp of llama.cpp in llama-cpp-python 0.3.36.
"""

from collections.abc import Callable
from math import pi, sqrt

import numpy as np
from numpy.typing import NDArray

from engine.ops import functions
from engine.ops.ggml.base import (
    F64,
    SMALLEST,
    Build,
    Expected,
    Node,
    U,
    meaning,
)
from engine.ops.ggml.near import Near, constant, exact, silu, swish, where

GELU_A, ROOT = 0.044715, sqrt(2 / pi)
QUICK = -1.702
TABLE_ROUNDINGS = 8  # tanh or exp to 1 ulp, and the six operations around it


def halves(x: F64) -> F64:
    return x.astype(np.float32).astype(np.float16).astype(np.float64)


def from_table(function: Callable[[F64], F64], x: F64) -> Near:
    """The half next to the function of the half next to x."""
    h = halves(x)
    value = function(h)
    slack = TABLE_ROUNDINGS * U * (np.abs(value) + np.abs(h))
    low, high = halves(value - slack), halves(value + slack)
    return Near(halves(value), high - low)


def gelu(x: F64) -> F64:
    value: F64 = 0.5 * x * (1 + functions.tanh(ROOT * x * (1 + GELU_A * x * x)))
    return value


def gelu_quick(x: F64) -> F64:
    value: F64 = x / (1 + functions.exp(QUICK * x))
    return value


def gelu_plain(x: F64) -> Near:
    near = exact(x)
    inner = constant(ROOT) * near * (constant(1.0) + constant(GELU_A) * near * near)
    return constant(0.5) * near * (constant(1.0) + inner.tanh())


def quick_plain(x: F64) -> Near:
    near = exact(x)
    return swish(near, constant(-QUICK) * near)


def gelu_table(x: F64) -> Near:
    """Outside -10 to 10 the argument itself, or zero."""
    inside = from_table(gelu, np.clip(x, -10, 10))
    return where(np.abs(x) >= 10, exact(np.where(x > 0, x, 0.0)), inside)


def gelu_erf(x: F64) -> Near:
    inner = exact(x) * constant(float(np.float32(1 / sqrt(2))))
    v = functions.erf(inner.v)
    r = np.maximum(functions.erf(inner.v + inner.r) - v, v - functions.erf(inner.v - inner.r))
    erf_near = Near(v, r + 2 * U * np.abs(v))
    return constant(0.5) * exact(x) * (constant(1.0) + erf_near)


def quick_table(x: F64) -> Near:
    return from_table(gelu_quick, x)


UNARY: dict[str, Callable[[F64], Near]] = {
    "GELU": gelu_table,
    "GELU_ERF": gelu_erf,
    "GELU_QUICK": quick_table,
}
GATES: dict[str, Callable[[F64], Near]] = {
    "REGLU": lambda x: exact(np.where(x > 0, x, 0.0)),
    "GEGLU": gelu_table,
    "GEGLU_ERF": gelu_erf,
    "GEGLU_QUICK": quick_table,
    "SWIGLU": lambda x: silu(exact(x)),
}
# where ggml writes zero, whatever the other factor is
CLOSED: dict[str, Callable[[F64], NDArray[np.bool_]]] = {
    "REGLU": lambda gate: ~(gate > 0),
    "GEGLU": lambda gate: gate <= -10,
}
WITHOUT_TABLE = {
    "GELU": gelu_plain,
    "GELU_QUICK": quick_plain,
    "GEGLU": gelu_plain,
    "GEGLU_QUICK": quick_plain,
}


def function_of(node: Node, build: Build) -> Callable[[F64], Near]:
    if build.plain and node.op in WITHOUT_TABLE:
        return WITHOUT_TABLE[node.op]
    return (UNARY | GATES)[node.op]


def gate_and_up(node: Node) -> tuple[F64, F64]:
    """Two sources, or the halves of one, which may be swapped."""
    a = node.wide(0)
    if node.optional(1) is not None:
        return a, node.wide(1)
    left, right = np.split(a, 2, axis=-1)
    return (right, left) if node.params[1] else (left, right)


@meaning(*UNARY)
def gelus(node: Node, build: Build) -> Expected:
    near = function_of(node, build)(node.wide(0))
    if build.plain:
        return near.expected("tanh, exp or erf")
    allowed = near.r + U * np.abs(near.v) + SMALLEST
    return Expected(near.v, allowed, "a table of halves, or erf by the C library")


@meaning(*GATES)
def gated(node: Node, build: Build) -> Expected:
    gate, up = gate_and_up(node)
    near = function_of(node, build)(gate) * exact(up)
    if not build.plain and node.op in CLOSED:
        near = where(CLOSED[node.op](gate), exact(np.zeros(up.shape)), near)
    return near.expected("the gate times the other factor")


@meaning("SWIGLU_OAI")
def swiglu_oai(node: Node, _: Build) -> Expected:
    alpha, limit = (float(f) for f in node.floats()[2:4])
    gate, up = gate_and_up(node)
    x, y = exact(np.minimum(gate, limit)), exact(np.clip(up, -limit, limit))
    return (swish(x, constant(alpha) * x) * (y + constant(1.0))).expected(
        "clamped, alpha in the exponent"
    )


@meaning("SWIGLU_CLAMP")
def swiglu_clamp(node: Node, _: Build) -> Expected:
    limit = float(node.floats()[3])
    gate, up = gate_and_up(node)
    near = silu(exact(np.minimum(gate, limit))) * exact(np.clip(up, -limit, limit))
    return near.expected("SwiGLU of clamped factors")
