"""GELU from ggml's tables, and the gated linear units.

ggml looks GELU up in a table of halves, by the argument rounded to half: so the result is a half,
and an honest table may hold the neighbouring one only where the value lies between two halves.
Source: ggml-cpu/vec.h and ops.cpp of llama.cpp in llama-cpp-python 0.3.36.
"""

from collections.abc import Callable
from math import erf, pi, sqrt

import numpy as np

from engine.ops.ggml.base import (
    F64,
    SMALLEST,
    Build,
    Expected,
    Node,
    U,
    meaning,
)
from engine.ops.ggml.near import Near, constant, exact, silu, where

GELU_A, ROOT = 0.044715, sqrt(2 / pi)
QUICK = -1.702
TABLE_ROUNDINGS = 8  # tanh or exp to 1 ulp, and the six operations around it
erfs = np.vectorize(erf, otypes=[np.float64])


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
    value: F64 = 0.5 * x * (1 + np.tanh(ROOT * x * (1 + GELU_A * x * x)))
    return value


def gelu_quick(x: F64) -> F64:
    value: F64 = x / (1 + np.exp(QUICK * x))
    return value


def gelu_table(x: F64) -> Near:
    """Outside -10 to 10 the argument itself, or zero."""
    inside = from_table(gelu, np.clip(x, -10, 10))
    return where(np.abs(x) >= 10, exact(np.where(x > 0, x, 0.0)), inside)


def gelu_erf(x: F64) -> Near:
    inner = exact(x) * constant(float(np.float32(1 / sqrt(2))))
    v = erfs(inner.v)  # no steeper than 2 / sqrt(pi)
    erf_near = Near(v, 1.13 * inner.r + 2 * U * np.abs(v))
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


def gate_and_up(node: Node) -> tuple[F64, F64]:
    """Two sources, or the halves of one, which may be swapped."""
    a = node.wide(0)
    if node.optional(1) is not None:
        return a, node.wide(1)
    left, right = np.split(a, 2, axis=-1)
    return (right, left) if node.params[1] else (left, right)


@meaning(*UNARY)
def gelus(node: Node, _: Build) -> Expected:
    near = UNARY[node.op](node.wide(0))
    allowed = near.r + U * np.abs(near.v) + SMALLEST
    return Expected(near.v, allowed, "a table of halves, or erf by the C library")


@meaning(*GATES)
def gated(node: Node, _: Build) -> Expected:
    gate, up = gate_and_up(node)
    return (GATES[node.op](gate) * exact(up)).expected("the gate times the other factor")


@meaning("SWIGLU_OAI")
def swiglu_oai(node: Node, _: Build) -> Expected:
    alpha, limit = (float(f) for f in node.floats()[2:4])
    gate, up = gate_and_up(node)
    x, y = exact(np.minimum(gate, limit)), exact(np.clip(up, -limit, limit))
    sloped = constant(alpha) * x
    bent = x / (constant(1.0) + Near(-sloped.v, sloped.r).exp())
    return (bent * (y + constant(1.0))).expected("clamped, alpha in the exponent")


@meaning("SWIGLU_CLAMP")
def swiglu_clamp(node: Node, _: Build) -> Expected:
    limit = float(node.floats()[3])
    gate, up = gate_and_up(node)
    near = silu(exact(np.minimum(gate, limit))) * exact(np.clip(up, -limit, limit))
    return near.expected("SwiGLU of clamped factors")
