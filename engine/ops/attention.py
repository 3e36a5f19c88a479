"""Attention: queries times keys, weights times values, and both products in one op.

Shapes are those of the published graph. Runs of query heads share a key head; `spread` repeats the
key head for each of them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.ops.build import Build
from lockstep.engine.ops.coded import format_of, is_coded
from lockstep.engine.ops.near import (
    EXP_ULP,
    F64,
    ULP,
    Near,
    Number,
    U,
    choose,
    finite,
    rearrange,
    tanh,
    value_of,
)
from lockstep.engine.ops.products import convert, of_floats
from lockstep.engine.ops.softmax import TREE, weights
from lockstep.engine.quants.base import F32

Bools = NDArray[np.bool_]
Spread = Callable[[NDArray[Any], int], F64]  # (cells, kv_heads, dim) -> (heads, cells, dim)


def like(x: F32, stored: NDArray[Any]) -> F32:
    """Return x rounded as the product with `stored` reads it.

    ggml rounds queries to F16 for F16 keys, and to the activation format of the blocks for
    quantised keys.
    """
    if is_coded(stored):
        return convert(x, format_of(stored)).values.astype(np.float32)
    if stored.dtype == np.float16:
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    return x


def kq(q: F32, k: NDArray[Any], spread: Spread, build: Build) -> Number:
    """Return the scores. q: (tokens, heads, dim), k: (cells, kv_heads, dim) -> (heads, tokens,
    cells)."""
    queries = q if build.plain else like(q, k)
    wide = queries.astype(np.float64).transpose(1, 0, 2)
    return of_floats(wide, spread(k, q.shape[1]).transpose(0, 2, 1), build)


def kqv(p: F32, v: NDArray[Any], spread: Spread, build: Build) -> Number:
    """Return the weighted sums of the values. p: (heads, tokens, cells), v: (cells, kv_heads, dim)
    -> (tokens, heads * dim)."""
    weights = (p if build.plain else like(p, v)).astype(np.float64)
    values = spread(v, len(p))
    return tokens_first(either_way(of_floats(weights, values, build), weights, values, build))


def either_way(out: Number, p: F64, v: F64, build: Build) -> Number:
    """Return `out`, without a limit where a hidden cell gives 0 * NaN: an engine that skips the
    cell gets a number.
    """
    wrong = ~np.isfinite(v)
    if not (isinstance(out, Near) and wrong.any()):
        return out
    hidden = build.multiply((p == 0) * 1.0, wrong * 1.0) > 0
    return Near(out.v, np.where(hidden, np.inf, out.r), out.reason)


def tokens_first(x: Number) -> Number:
    """Join the heads of each token: (heads, tokens, dim) -> (tokens, heads * dim)."""
    return rearrange(x, lambda a: a.transpose(1, 0, 2).reshape(a.shape[1], len(a) * a.shape[2]))


def flash_attn(
    q: F32,
    k: NDArray[Any],
    v: NDArray[Any],
    scale: float,
    visible: Bools,
    cap: float,
    sinks: F32 | None,
    spread: Spread,
    build: Build,
) -> Number:
    """Return attention as one op, without roundings between its three parts; cap: the limit of
    scores; sinks: (heads,)."""
    heads, ends = q.shape[1], None if sinks is None else sinks.astype(np.float64)[:, None, None]
    added = np.where(visible, 0.0, -np.inf)
    wide = q.astype(np.float64).transpose(1, 0, 2)
    k, v = spread(k, heads), spread(v, heads)
    return tokens_first(attend(wide, k, v, added, scale, build, softcap=cap, sinks=ends))


def attend(
    q: F64,
    k: F64,
    v: F64,
    added: F64,
    scale: float,
    build: Build,
    *,
    softcap: float = 0.0,
    sinks: F64 | None = None,
    tile: int = 1,
) -> Number:
    """Attend with a softmax. q: (heads, tokens, dim); k, v: (heads, cells, dim) -> (heads, tokens,
    dim of v), zero if all cells are hidden. added: a mask that is added to the scores and
    broadcasts to (heads, tokens, cells); minus infinity hides a cell.

    All sums are in float32, in any order, over the visible cells. A running softmax may rescale its
    sums at every cell. Or it rescales once a tile, and adds up the tile's weights in vectors. Each
    rescaling is a power and two products, which `rescaled` counts.
    """
    s = of_floats(q, k.transpose(0, 2, 1), build) * scale
    if softcap:
        s = tanh(s / softcap) * softcap
    seen = np.isfinite(added)
    if isinstance(s, Near):
        s = finite(s + Near(added, 4 * U * np.abs(np.where(seen, added, 0.0))))
    else:
        s = s + added
    s = choose(seen, s, -np.inf)
    shape = value_of(s).shape
    cells = np.broadcast_to(seen | build.zeros, shape).sum(axis=-1, keepdims=True)
    times = cells if tile == 1 else np.minimum(cells, k.shape[1] / tile + 1)
    rescaled = times * (EXP_ULP * ULP + 2 * U)
    powers, sums = weights(s, build, sinks, cells if tile == 1 else times + TREE, rescaled)
    if isinstance(powers, Near):
        # these are rounded before the largest score is known, so the error is not visible later
        if build.factors is not None:
            powers = replace(powers, r=powers.r + build.factors.loss * powers.v)
        r = build.multiply(np.asarray(powers.r), np.abs(v))
        size = build.multiply(powers.v, np.abs(v))
        terms: Number = Near(build.multiply(powers.v, v), r + cells * U * size)
        terms = either_way(terms, powers.v, v, build)
    else:
        terms = build.multiply(powers, v)
    return choose(value_of(sums) == 0, 0.0, terms / sums)
