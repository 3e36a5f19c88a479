"""Softmax of scaled scores, with a mask, ALiBi slopes and sinks.

Source: ggml_compute_forward_soft_max_f32 in ggml-cpu/ops.cpp of llama-cpp-python 0.3.36.
"""

import math
from dataclasses import replace

import numpy as np

from lockstep.engine.kernels.threads import each
from lockstep.engine.node import Node
from lockstep.engine.ops import functions, softmax
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.base import like, meaning
from lockstep.engine.ops.near import F64, Expected, Near, Number, exact, finite, value_of

# number of scores at a time: a dozen float64 arrays of this size fit into the cache
PIECE = 1 << 15


def slopes(n_head: int, max_bias: float) -> F64:
    """Return ALiBi slopes, (heads, 1, 1); ones without a bias. Powers of float32 bases, as in
    ggml."""
    if max_bias <= 0:
        return np.ones((1, 1, 1))
    log2 = 1 << (n_head.bit_length() - 1)
    m0, m1 = (power_of_two(-bias / log2) for bias in (max_bias, max_bias / 2))
    times = [(m0, h + 1) if h < log2 else (m1, 2 * (h - log2) + 1) for h in range(n_head)]
    return np.array([math.prod([base] * n) for base, n in times])[:, None, None]


def power_of_two(exponent: float) -> float:
    """Return the power of two, rounded to float32."""
    return float(functions.power(2.0, exponent).astype(np.float32))


def scores(node: Node, build: Build) -> Number:
    """Return x * scale + slope * mask: (ne3, heads, rows, columns)."""
    factor, max_bias = (float(f) for f in node.floats()[:2])
    x = build.number(node.wide(0))
    if factor != 1.0:
        x = x * factor
        x = finite(x) if isinstance(x, Near) else x
    mask = node.optional(1)
    if mask is None:
        return x
    shape = x.shape
    shown = node.wide(1)[:, :, : shape[2]]
    if any(m not in (1, n) for m, n in zip(shown.shape, shape, strict=True)):
        shown = like(shown, shape)  # otherwise it is broadcast
    slope = slopes(shape[1], max_bias)
    if not isinstance(x, Near):
        return x + shown if max_bias <= 0 else x + shown * slope
    added = exact(shown) * Near(slope, 0.0 if max_bias <= 0 else 4 * 2.0**-24 * slope)
    return finite(x + finite(added))


def sizes_of_scores(node: Node) -> F64:
    """Return magnitudes of scores, infinite where a hidden score is NaN or infinite. llama.cpp adds
    minus infinity to such a score, but an engine that skips the cell gets a number.
    """
    x, mask = node.wide(0), node.optional(1)
    size = np.abs(x * float(node.floats()[0]))
    if mask is None:
        return np.where(np.isnan(size), 0.0, size)
    hides = np.isneginf(like(node.wide(1)[:, :, : x.shape[2]], x.shape))
    return np.where(np.isnan(size), np.where(hides, np.inf, 0.0), size)


@meaning("SOFT_MAX")
def soft_max(node: Node, build: Build) -> Expected:
    """Return the softmax, computed in blocks of rows, because the scores of a long context are
    large.
    """
    shape = tuple(reversed(node.source(0).ne))
    value, allowed = np.empty(shape), np.empty(shape if build.bounds else 0)
    sinks = None if node.optional(2) is None else node.wide(2).reshape(1, -1, 1, 1)
    reasons = [""]

    def work(rows: slice) -> None:
        found = softmax.of_scores(scores(of_rows(node, rows), build), build, sinks)
        value[:, :, rows] = value_of(found)
        if isinstance(found, Near):
            some = found.expect(found.reason)
            allowed[:, :, rows], reasons[0] = some.allowed, some.reason

    step = max(1, PIECE // max(1, math.prod(shape) // max(1, shape[2])))
    each(work, [slice(start, start + step) for start in range(0, max(1, shape[2]), step)])
    if build.bounds and np.isnan(value).any():
        allowed = np.asarray(softmax.in_range(Near(value, allowed), sizes_of_scores(node)).r)
    return Expected(value, allowed if build.bounds else 0.0, reasons[0])


def of_rows(node: Node, rows: slice) -> Node:
    """Return the node with only these rows of the scores and of the mask."""
    scores, mask, *others = (*node.sources, None)[: max(2, len(node.sources))]
    some = [
        s and replace(s, value=None if s.value is None else s.value[:, :, rows])
        for s in (scores, mask)
    ]
    return replace(node, sources=(*some, *others))
