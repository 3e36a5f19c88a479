"""Softmax over the last axis.

Source: ggml_compute_forward_soft_max_f32 in ggml-cpu/ops.cpp of llama-cpp-python 0.3.36.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.ops.build import Build
from lockstep.engine.ops.near import (
    F64,
    LARGEST,
    Near,
    Number,
    because,
    choose,
    exp,
    sum_terms,
    value_of,
)
from lockstep.engine.quants.base import F32

# rounding errors of the tree that adds the 16 lanes of a vector; vectors are added in double
# precision
TREE = 4


def soft_max(x: F32, scale: float, visible: NDArray[np.bool_] | None, build: Build) -> Number:
    """Compute the softmax of x * scale without hidden entries; `visible` has no axis of heads.

    A row without visible cells is all zeros.
    """
    out = of_scores(scale_scores(x, scale, visible, build), build, empty=0.0)
    if not isinstance(out, Near):
        return out
    # infinite for a score of minus infinity that is not masked
    size = np.abs(x.astype(np.float64) * scale)
    return in_range(out, size if visible is None else np.where(visible, size, 0.0))


def soft_max_with_sinks(
    x: F32, scale: float, visible: NDArray[np.bool_], sinks: F32, build: Build
) -> Number:
    """Compute the softmax with a sink (heads,) as one more entry in each row, then drop it."""
    ends = sinks.astype(np.float64)[:, None, None]
    return of_scores(scale_scores(x, scale, visible, build), build, ends)


def scale_scores(x: F32, scale: float, visible: NDArray[np.bool_] | None, build: Build) -> Number:
    s, scale = build.number(x), build.parameter(scale)
    if scale != 1.0:
        s = s * scale
    return s if visible is None else choose(visible, s, -np.inf)


def of_scores(s: Number, build: Build, sinks: F64 | None = None, empty: float = np.nan) -> Number:
    """Return the softmax of scores; a score of minus infinity is hidden.

    sinks: one more score for each row, without a weight in the result; empty: the result for a row
    that is all hidden.
    """
    cells = value_of(s).shape[-1]
    powers, sums = weights(s, build, sinks, cells if build.plain else TREE)
    # ggml computes the sum and its reciprocal in double precision
    if build.plain and isinstance(sums, Near):
        sums = sums.twice()
    out = powers * (1.0 / sums)
    nothing = value_of(sums) == 0
    if not np.isnan(empty) and nothing.any():
        out = choose(nothing, empty, out)
    if not isinstance(out, Near):
        return out
    over = "in float32" if build.plain else "over the lanes of a vector"
    v = value_of(s)
    out = in_range(out, np.where(np.isneginf(v), 0.0, np.abs(v)))
    return because(out, f"scores, their largest, and the sum {over}")


def in_range(out: Near, size: F64) -> Near:
    """Remove the limit if a score exceeds float32, because honest engines differ there."""
    beyond = size.max(axis=-1, keepdims=True) > LARGEST
    return replace(out, r=np.where(beyond, np.inf, out.r))


def weights(
    s: Number, build: Build, sinks: F64 | None, roundings: float, extra: float = 0.0
) -> tuple[Number, Number]:
    """Return exp(score - largest score) and its sum. extra: additional relative error of a power. A
    power that is zero is zero in every implementation.
    """
    top = largest(s, sinks, build)
    powers = exp(s - top)
    if isinstance(powers, Near):
        powers = Near(powers.v, np.where(powers.v == 0, 0.0, powers.r + extra * powers.v))
    sums = sum_terms(powers, roundings)
    return powers, sums if sinks is None else sums + exp(sinks - top)


def largest(s: Number, sinks: F64 | None, build: Build) -> Number:
    """Return the largest score of each row; zero where all is hidden.

    In float32, the same largest score is subtracted for all powers of a row, so its error cancels
    in the quotient. But an engine with a running softmax uses several largest scores and rescales
    from one to the next. Then the error is that of a score.
    """
    v = value_of(s).max(axis=-1, keepdims=True)
    v = v if sinks is None else np.maximum(v, sinks)
    v = np.where(np.isneginf(v), 0.0, v)
    if not isinstance(s, Near):
        return v
    r = np.broadcast_to(np.asarray(s.r), s.v.shape).max(axis=-1, keepdims=True)
    return Near(v, r if build.plain else 0.0)
