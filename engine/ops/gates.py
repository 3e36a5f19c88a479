"""SiLU and GELU, alone and times another factor, and the cap of logits.

ggml looks up GELU in a table of halves, with the argument rounded to half. So the result is a half.
An honest table may hold the neighbouring half only where the value lies between two halves. Source:
ggml-cpu/vec.h and ops.cpp of llama.cpp in llama-cpp-python 0.3.36.
"""

from collections.abc import Callable
from math import pi, sqrt

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.ops import functions
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.near import (
    F64,
    Near,
    Number,
    U,
    because,
    choose,
    exp,
    near,
    silu,
    swish,
    tanh,
    value_of,
)
from lockstep.engine.quants.base import F32

GELU_A, ROOT = 0.044715, sqrt(2 / pi)
QUICK = -1.702
OAI_ALPHA, OAI_LIMIT = float(np.float32(1.702)), np.float32(7)
TABLE_ROUNDINGS = 8  # rounding errors: tanh or exp to 1 ulp, and six further operations
CLOSED = -10.0  # at and below this gate, ggml's GEGLU is zero


def swiglu(gate: F32, up: F32, build: Build) -> Number:
    """Return silu(gate) * up."""
    out = silu(build.number(gate)) * build.number(up)
    return because(out, "exp to 2 ulp, sum, division, product")


def swiglu_oai(gate: F32, up: F32, build: Build) -> Number:
    """Return gate * sigmoid(1.702 * gate) * (up + 1), both clamped at 7."""
    x = build.number(np.minimum(gate, OAI_LIMIT))
    y = build.number(np.clip(up, -OAI_LIMIT, OAI_LIMIT))
    return because(swish(x, OAI_ALPHA * x) * (y + 1.0), "clamped, alpha in the exponent")


def sigmoid(x: F32, build: Build) -> Number:
    out = 1.0 / (1.0 + exp(-build.number(x)))
    if isinstance(out, Near):  # an overflowing exponential gives an exact result
        out = Near(out.v, np.where(np.isfinite(out.r), out.r, 0.0))
    return because(out, "exp to 2 ulp, sum, quotient")


def gelu(x: F32, build: Build) -> Number:
    """Compute GELU by the formula with tanh, as ggml does."""
    return because(gelu_of(build.number(x), build), "GELU by tanh, or from a table of halves")


def geglu(gate: F32, up: F32, build: Build) -> Number:
    """Return gelu(gate) * up."""
    wide = build.number(gate)
    out = close_gate(gate <= CLOSED, gelu_of(wide, build) * build.number(up), build)
    return because(out, "GELU times the other factor")


def soft_cap(x: F32, cap: float, build: Build) -> Number:
    """Return tanh(x / cap) * cap, which never exceeds cap."""
    cap = build.parameter(cap)
    return because(tanh(build.number(x) / cap) * cap, "a quotient, tanh to 2 ulp, a product")


def close_gate(where: NDArray[np.bool_], out: Number, build: Build) -> Number:
    """Write zero where the gate is closed, whatever the other factor, as ggml does."""
    return out if build.plain else choose(where, 0.0, out)


def gelu_of(x: Number, build: Build) -> Number:
    """Compute GELU; outside -10 to 10 ggml returns the argument itself, or zero."""
    if build.plain:
        return gelu_plain(x)
    v = value_of(x)
    inside = from_table(gelu_plain, x, np.clip(v, -10, 10))
    return choose(np.abs(v) >= 10, np.where(v > 0, v, 0.0), inside)


def gelu_quick(x: Number, build: Build) -> Number:
    if build.plain:
        return swish(x, -QUICK * x)
    return from_table(lambda h: h / (1 + exp(QUICK * h)), x, value_of(x))


def gelu_plain(x: Number) -> Number:
    inner = ROOT * x * (1.0 + GELU_A * x * x)
    return 0.5 * x * (1.0 + tanh(inner))


def from_table(function: Callable[[F64], Number], x: Number, v: F64) -> Number:
    """Return the function's value from ggml's table of halves, with a bound if x is a `Near`."""
    h = halves(v)
    value = value_of(function(h))
    if not isinstance(x, Near):
        return halves(value)
    slack = TABLE_ROUNDINGS * U * (np.abs(value) + np.abs(h))
    low, high = halves(value - slack), halves(value + slack)
    return Near(halves(value), high - low)


def halves(x: F64) -> F64:
    return x.astype(np.float32).astype(np.float16).astype(np.float64)


def gelu_erf(x: Number, _: Build) -> Near:
    x = near(x)
    inner = x * float(np.float32(1 / sqrt(2)))
    v = functions.erf(inner.v)
    r = np.maximum(functions.erf(inner.v + inner.r) - v, v - functions.erf(inner.v - inner.r))
    return 0.5 * x * (1.0 + Near(v, r + 2 * U * np.abs(v)))
