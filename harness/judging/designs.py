"""Results of honest engines of other designs, tried if a subject differs from llama.cpp.

Each design has its own bound, so no design widens llama.cpp's bound. Angles of rope are in
harness/judging/rope_designs.py.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.ops.build import Build
from lockstep.engine.ops.experts import sum_experts
from lockstep.engine.ops.near import Near, Number, U, because, near, swish, tanh
from lockstep.engine.ops.norms import of_squares
from lockstep.engine.quants.base import F32
from lockstep.harness.judging.compare import mismatch_between
from lockstep.harness.judging.tolerances import (
    Bound,
    limit_overflow,
    value_and_bound,
    where_limited,
)

GGML = Build(lanes=1)  # for ops whose result does not depend on the number of lanes
PLAIN = Build(lanes=1, plain=True)

# from what a subject shows to what its design would give (the nearest value, if the design leaves a
# choice), and the limit of an honest run
Other = Callable[[NDArray[Any]], tuple[NDArray[Any], Bound]]


def agrees(other: Other, shown: NDArray[Any]) -> bool:
    with np.errstate(all="ignore"):  # the values of a degenerate model are judged as well
        value, bound = other(shown)
    allowed = np.broadcast_to(np.asarray(bound.allowed), value.shape)
    return mismatch_between(value, where_limited(value, shown, allowed), allowed) is None


# --- experts ------------------------------------------------------------------------------------


def experts_in_any_order(x: F32) -> list[Other]:
    """Return the design that adds up the experts in float32 in any order, or in float64. x:
    (tokens, used, width)."""
    return [lambda _: value_and_bound(sum_experts, x, build=PLAIN)]


# --- softmax, norms and SwiGLU ----------------------------------------------------------------


def of_sum_shown(
    truth: NDArray[Any], bound: Bound, shown: NDArray[Any]
) -> tuple[NDArray[np.float64], Bound]:
    """Return the softmax divided by the sum of powers that fits the shown values best, within the
    bound of that sum."""
    wide = truth.astype(np.float64)
    found = shown.sum(axis=-1, keepdims=True, dtype=np.float64)
    factor = found / wide.sum(axis=-1, keepdims=True)
    most = np.count_nonzero(truth, axis=-1, keepdims=True) * U
    off = np.clip(factor - 1, -most, most)
    return wide * (1 + np.where(np.isfinite(off), off, 0.0)), bound


def norms_of_float32_sums(x: F32, weight: F32 | None, eps: float) -> Iterator[Other]:
    """Yield norms whose squares are added in float32. ggml adds them in double.

    A bound for thousands of additions would be too wide. But the number of partial sums, and
    whether squares are rounded before the addition, determine the result on every machine.
    """
    for lanes in (1, 2, 4, 8, 16, 32, 64):
        for fused in (False, True):
            yield partial(norm_of_sum, x, weight, eps, lanes, fused)


def norm_of_sum(
    x: F32, weight: F32 | None, eps: float, lanes: int, fused: bool, shown: NDArray[Any]
) -> tuple[F32, Bound]:
    rows = x.reshape(-1, x.shape[-1])
    sums = sums_of_squares(rows, lanes, fused).reshape(*x.shape[:-1], 1).astype(np.float64)
    squared = Near(sums, 2 * U * sums)  # the error of a sum in double precision
    wide, factor = GGML.number(x), None if weight is None else GGML.number(weight)
    return limit_overflow(near(of_squares(wide, squared, factor, GGML.parameter(eps), GGML)))


def sums_of_squares(x: F32, lanes: int, fused: bool) -> F32:
    """Return the sum of squares of each row, (tokens,), with `lanes` partial sums that are added as
    a tree. x: (tokens, width); fused: squares are not rounded before they are added."""
    width = -(-x.shape[-1] // lanes) * lanes
    rows = np.zeros((len(x), width), np.float32)
    rows[:, : x.shape[-1]] = x
    rows = rows.reshape(len(x), width // lanes, lanes)
    # squares are exact in float64
    squares = np.square(rows, dtype=np.float64 if fused else np.float32)
    total = np.zeros((len(x), lanes), np.float32)
    for i in range(rows.shape[1]):
        total = (total + squares[:, i]).astype(np.float32)
    while total.shape[-1] > 1:
        total = total[:, ::2] + total[:, 1::2]
    return total[:, 0]


def swiglu_ways(gate: NDArray[Any], up: NDArray[Any] | None = None) -> list[Other]:
    """Return formulas for the gated activation that have a larger relative error for large negative
    gates. Without `up` they compute only SiLU."""
    return [
        lambda _: value_and_bound(swiglu_by_tanh, gate, up, build=PLAIN),
        lambda _: value_and_bound(swiglu_by_exp2, gate, up, build=PLAIN),
    ]


def swiglu_by_tanh(gate: NDArray[Any], up: NDArray[Any] | None, build: Build) -> Number:
    """Compute the sigmoid as 1/2 + tanh(gate / 2) / 2. This sum cancels for negative gates."""
    x = build.number(gate)
    turn = tanh(build.number(gate / 2))
    out = times(x * (0.5 + in_half(turn)), up, build)
    return because(out, "tanh within 2 ulp of 1; sum, two products")


def in_half(x: Number) -> Number:
    """Return half of the value. This operation is exact."""
    return Near(x.v / 2, x.r / 2) if isinstance(x, Near) else x / 2


def times(x: Number, factor: NDArray[Any] | None, build: Build) -> Number:
    return x if factor is None else x * build.number(factor)


def swiglu_by_exp2(gate: NDArray[Any], up: NDArray[Any] | None, build: Build) -> Number:
    """Compute exp(-gate) as 2^(-gate * log2(e)). The constant and the product are rounded, and an
    absolute error of the exponent becomes a relative error of the power."""
    x = near(build.number(gate))
    out = swish(x, Near(x.v, 2 * U * np.abs(x.v)))
    return because(
        times(out, up, build),
        "exp computed by exp2, whose exponent is rounded twice; sum, division, product",
    )
