"""GELU and the gated linear units.

Source: ggml-cpu/vec.h and ops.cpp of llama.cpp in llama-cpp-python 0.3.36.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.node import Node
from lockstep.engine.ops import gates
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.base import meaning
from lockstep.engine.ops.near import (
    F64,
    SMALLEST,
    Expected,
    Number,
    U,
    constant,
    exact,
    expected_of,
    near,
    silu,
    swish,
    value_of,
)

Function = Callable[[Number, Build], Number]

UNARY: dict[str, Function] = {
    "GELU": gates.gelu_of,
    "GELU_ERF": gates.gelu_erf,
    "GELU_QUICK": gates.gelu_quick,
}
GATES: dict[str, Function] = {
    "REGLU": lambda x, _: exact(np.where(value_of(x) > 0, value_of(x), 0.0)),
    "GEGLU": gates.gelu_of,
    "GEGLU_ERF": gates.gelu_erf,
    "GEGLU_QUICK": gates.gelu_quick,
    "SWIGLU": lambda x, _: silu(x),
}
CLOSED: dict[str, Callable[[F64], NDArray[np.bool_]]] = {
    "REGLU": lambda gate: ~(gate > 0),
    "GEGLU": lambda gate: gate <= gates.CLOSED,
}


def gate_and_up(node: Node) -> tuple[F64, F64]:
    """Return gate and up: two sources, or the two halves of one source, in either order."""
    a = node.wide(0)
    if node.optional(1) is not None:
        return a, node.wide(1)
    left, right = np.split(a, 2, axis=-1)
    return (right, left) if node.params[1] else (left, right)


@meaning(*UNARY)
def gelus(node: Node, build: Build) -> Expected:
    found = near(UNARY[node.op](exact(node.wide(0)), build))
    if build.plain:
        return found.expect("tanh, exp or erf")
    allowed = found.r + U * np.abs(found.v) + SMALLEST
    by = "erf by the C library" if node.op == "GELU_ERF" else "looked up in a table of halves"
    return Expected(found.v, allowed, by)


@meaning(*GATES)
def expect_gated(node: Node, build: Build) -> Expected:
    gate, up = gate_and_up(node)
    found: Number = GATES[node.op](build.number(gate), build) * build.number(up)
    if node.op in CLOSED:
        found = gates.close_gate(CLOSED[node.op](gate), found, build)
    return expected_of(found, "the gate times the other factor")


@meaning("SWIGLU_OAI")
def swiglu_oai(node: Node, _: Build) -> Expected:
    alpha, limit = (float(f) for f in node.floats()[2:4])
    gate, up = gate_and_up(node)
    x, y = exact(np.minimum(gate, limit)), exact(np.clip(up, -limit, limit))
    found = swish(x, constant(alpha) * x) * (y + constant(1.0))
    return near(found).expect("clamped, alpha in the exponent")


@meaning("SWIGLU_CLAMP")
def swiglu_clamp(node: Node, _: Build) -> Expected:
    limit = float(node.floats()[3])
    gate, up = gate_and_up(node)
    found = silu(exact(np.minimum(gate, limit))) * exact(np.clip(up, -limit, limit))
    return near(found).expect("SwiGLU of clamped factors")
