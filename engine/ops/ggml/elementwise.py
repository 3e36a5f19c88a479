"""Ops on single elements: arithmetic, functions of one argument, and clamps.

Source: ggml-cpu/binary-ops.cpp, unary-ops.cpp and vec.h of llama.cpp in llama-cpp-python 0.3.36.
"""

from collections.abc import Callable

import numpy as np

from lockstep.engine.node import Node
from lockstep.engine.ops import functions
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.base import EXACT, like, meaning, relative, round_to_type, single
from lockstep.engine.ops.near import (
    F64,
    LIBM_ULP,
    SMALLEST,
    TANH_ULP,
    Expected,
    Near,
    U,
    choose,
    constant,
    exact,
    finite,
    near,
    sigmoid,
    silu,
    softplus,
)

BINARY: dict[str, Callable[[F64, F64], F64]] = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "DIV": np.divide,
}
DETERMINED: dict[str, Callable[[F64], F64]] = {  # ops without rounding, or with a single one
    "SQR": np.square,
    "SQRT": np.sqrt,
    "ABS": np.abs,
    "SGN": lambda x: np.where(x > 0, 1.0, np.where(x < 0, -1.0, 0.0)),  # 0 for NaN
    "NEG": np.negative,
    "STEP": lambda x: (x > 0).astype(np.float64),
    "RELU": lambda x: np.where(x > 0, x, 0.0),
    "ROUND": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "FLOOR": np.floor,
    "CEIL": np.ceil,
    "TRUNC": np.trunc,
}
LIBM: dict[str, Callable[[F64], F64]] = {
    "TANH": functions.tanh,
    "EXP": functions.exp,
    "LOG": functions.log,
    "SIN": functions.sin,
    "COS": functions.cos,
}


@meaning(*BINARY)
def binary(node: Node, _: Build) -> Expected:
    """Compute in float64, which is exact enough that the result is rounded only once."""
    a, b = node.wide(0), node.wide(1)
    value = BINARY[node.op](a, like(b, a.shape))
    return Expected(round_to_type(single(value, node.type), node.type), 0.0, EXACT)


@meaning("ADD_ID")
def add_id(node: Node, _: Build) -> Expected:
    """Add to each row the row of the second source that its id names."""
    a, rows = node.wide(0), node.wide(1)[0, 0]
    ids = node.source(2).value
    assert ids is not None
    return Expected(round_to_type(a + rows[ids[0, 0]][None], node.type), 0.0, EXACT)


@meaning(*DETERMINED)
def expect_elements(node: Node, build: Build) -> Expected:
    x = node.wide(0)
    value = DETERMINED[node.op](x)
    # ggml compares with zero, which is false for NaN
    if build.plain and node.op in ("RELU", "SGN"):
        value = np.where(np.isnan(x), x, value)
    return Expected(round_to_type(single(value, node.type), node.type), 0.0, EXACT)


@meaning(*LIBM)
def from_library(node: Node, _: Build) -> Expected:
    value = LIBM[node.op](node.wide(0))
    ulp = TANH_ULP if node.op == "TANH" else LIBM_ULP
    return relative(value, 2 * ulp, f"a function of the C library, to {ulp:g} ulp")


@meaning("SCALE")
def scale(node: Node, _: Build) -> Expected:
    """Compute x * scale + bias; without a bias only a product."""
    factor, bias = (float(f) for f in node.floats()[:2])
    x = node.wide(0)
    if bias == 0.0:
        return Expected(round_to_type(x * factor, node.type), 0.0, EXACT)
    near = exact(x) * constant(factor) + constant(bias)
    # an infinite bias hides all values, as a mask does
    near = near if np.isfinite(bias) else finite(near)
    return near.expect("a product and a sum")


@meaning("CLAMP")
def clamp(node: Node, build: Build) -> Expected:
    """Clamp with two comparisons. Both are false for NaN, so ggml's result is the upper limit."""
    low, high = (float(f) for f in node.floats()[:2])
    x = node.wide(0)
    if build.plain:
        return Expected(round_to_type(np.clip(x, low, high), node.type), 0.0, EXACT)
    below = np.where(x < high, x, high)
    return Expected(round_to_type(np.where(below > low, below, low), node.type), 0.0, EXACT)


@meaning("SIGMOID")
def sigmoid_of(node: Node, _: Build) -> Expected:
    return sigmoid(exact(node.wide(0))).expect("1 / (1 + exp(-x))")


@meaning("SILU")
def silu_of(node: Node, _: Build) -> Expected:
    return near(silu(exact(node.wide(0)))).expect("x / (1 + exp(-x))")


@meaning("SOFTPLUS")
def softplus_of(node: Node, _: Build) -> Expected:
    return softplus(exact(node.wide(0))).expect("log(1 + exp(x))")


@meaning("XIELU")
def xielu(node: Node, _: Build) -> Expected:
    """Compute xIELU. The node holds softplus of the alphas; `eps` keeps expm1 from positive
    arguments."""
    alpha_n, alpha_p, beta, eps = (float(f) for f in node.floats()[1:5])
    x = exact(node.wide(0))
    above = constant(alpha_p) * x * x + constant(beta) * x
    v = functions.expm1(np.minimum(x.v, eps))
    below = (Near(v, 2 * LIBM_ULP * U * np.abs(v)) - x) * constant(alpha_n) + constant(beta) * x
    return near(choose(x.v > 0, above, below)).expect("xIELU by its two branches")


@meaning("FILL")
def fill(node: Node, _: Build) -> Expected:
    value = np.full(node.value.shape, float(node.floats()[0]))
    return Expected(round_to_type(value, node.type), 0.0, EXACT)


@meaning("ARANGE")
def arange(node: Node, _: Build) -> Expected:
    start, _stop, step = (float(f) for f in node.floats()[:3])
    steps = np.arange(node.value.size).reshape(node.value.shape)
    value = start + step * steps
    return Expected(value, 2 * U * np.abs(value) + SMALLEST, "a product and a sum: 2 roundings")
