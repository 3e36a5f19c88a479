"""What honest engines of other designs compute: tried where a subject is not what llama.cpp is.

Each has a bound of its own, so that none of them widens what llama.cpp is held to. Angles of rope
have a file of their own, harness/rope_designs.py.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.ops.flash_mirror import attend_wide
from engine.ops.reference import I32, Bools, Reference
from engine.quants.base import F32
from engine.trace import SITES
from engine.weights import Weight
from harness import tolerances
from harness.compare import mismatch_between
from harness.tolerances import Bound

# sites with a value for each expert that was chosen for a token
PER_EXPERT = {name for name, info in SITES.items() if info.shape.startswith("(tokens, used")}

# what a subject shows -> what its design would give (the nearest, if it leaves a choice), and how
# far an honest run may be from it
Other = Callable[[NDArray[Any]], tuple[NDArray[Any], Bound]]


def agrees(other: Other, shown: NDArray[Any]) -> bool:
    with np.errstate(all="ignore"):  # the numbers of a degenerate model are judged as well
        value, bound = other(shown)
    allowed = np.broadcast_to(np.asarray(bound.allowed), value.shape)
    return mismatch_between(value, where_limited(value, shown, allowed), allowed) is None


def where_limited(truth: NDArray[Any], value: Any, allowed: NDArray[np.float64]) -> Any:
    """The value, and the truth where there is no limit to hold it to."""
    if value is None or value.shape != truth.shape or np.isfinite(allowed).all():
        return value
    return np.where(np.isfinite(allowed), value, truth)


# --- products and attention -----------------------------------------------------------------


def wide_attention(
    q: F32, k: NDArray[Any], v: NDArray[Any], scale: float, visible: Bools
) -> tuple[F32, Bound]:
    """Flash attention with float32 accumulators."""
    wide = attend_wide(q, k, v, scale, visible)
    return wide.out, tolerances.flash_attn(wide.out, wide.radius)


def wide_scores(q: F32, k: NDArray[Any]) -> tuple[F32, Bound]:
    """Queries in float32 on keys of any type, and the bound of a scalar loop."""
    out = Reference().kq(q, k)
    return out, scores_bound(q, k, out, 1)


def wide_mixture(p: F32, v: NDArray[Any]) -> tuple[F32, Bound]:
    """Weights of attention in float32 on values of any type."""
    out = Reference().kqv(p, v)
    return out, mixture_bound(p, v, out, 1)


def scores_bound(q: F32, k: NDArray[Any], out: F32, lanes: int) -> Bound:
    size = np.abs(q, dtype=np.float64).transpose(1, 0, 2)
    size = size @ np.abs(Reference().spread(k, q.shape[1])).transpose(0, 2, 1)
    return tolerances.product(size, out, q.shape[-1], lanes, 1)


def mixture_bound(p: F32, v: NDArray[Any], out: F32, lanes: int) -> Bound:
    weights, values = p.astype(np.float64), np.abs(Reference().spread(v, p.shape[0]))
    size = weights @ values
    if not np.isfinite(values).all():  # of a hidden cell: who leaves it out has no 0 * NaN
        size[((weights == 0) @ ~np.isfinite(values)) > 0] = np.inf
    size = size.transpose(1, 0, 2).reshape(out.shape)
    return tolerances.product(size, out, p.shape[-1], lanes, 1)


def plain_product(x: NDArray[np.float64], weight: Weight) -> tuple[F32, Bound]:
    """x: (tokens, inputs) times the decoded weights, and the bound of a scalar loop."""
    out = np.empty((len(x), weight.shape[0]), np.float32)
    size = np.empty(out.shape)
    magnitudes = np.abs(x)
    for rows, chunk in weight.chunks():
        wide = chunk.astype(np.float64)
        out[:, rows] = x @ wide.T
        size[:, rows] = magnitudes @ np.abs(wide, out=wide).T
    return out, tolerances.product(size, out, weight.shape[-1], 1, 1, filled(x, 1))


def filled(acts: NDArray[np.float64], run: int) -> NDArray[Any]:
    """(tokens, inputs) -> (tokens, 1): how many runs of inputs are not all zeros."""
    runs = acts.reshape(len(acts), acts.shape[-1] // run, run)
    counts: NDArray[Any] = runs.any(axis=-1).sum(axis=-1, keepdims=True)
    return counts


def gathered(
    shape: tuple[int, ...], parts: list[tuple[Bools, Other]], shown: NDArray[Any]
) -> tuple[F32, Bound]:
    """The plain products of all experts in one tensor."""
    out, allowed, reason = np.empty(shape, np.float32), np.empty(shape), ""
    for chosen, other in parts:
        out[chosen], bound = other(shown[chosen])
        allowed[chosen], reason = bound.allowed, bound.reason
    return out, Bound(allowed, reason)


# --- experts ------------------------------------------------------------------------------------


def experts_in_any_order(x: F32) -> tuple[F32, Bound]:
    """x: (tokens, used, width), summed in float32 in any order, or in float64."""
    out = Reference().sum_experts(x)
    size = np.abs(x, dtype=np.float64).sum(axis=1)
    return out, tolerances.sum_experts(size, out, x.shape[1])


def chosen(probs: F32, truth: I32, shown: NDArray[Any]) -> NDArray[Any]:
    """(tokens, used): the ids that are shown, where they are as good a choice as `truth`.

    Any order will do, and any of several experts with the same probability.
    """
    if shown.shape != truth.shape:
        return truth
    with np.errstate(invalid="ignore"):
        ids = shown.astype(np.int64)
    good = ((ids == shown) & (ids >= 0) & (ids < probs.shape[-1])).all(axis=-1)
    ids = np.where(good[:, None], ids, truth)
    good &= (np.diff(np.sort(ids, axis=-1), axis=-1) > 0).all(axis=-1)
    best, found = (np.sort(np.take_along_axis(probs, i, axis=-1)) for i in (truth, ids))
    good &= ((best == found) | (np.isnan(best) & np.isnan(found))).all(axis=-1)
    return np.where(good[:, None], ids, truth)


def order_of(oracle: NDArray[Any], shown: NDArray[Any]) -> NDArray[np.int64] | None:
    """(tokens, used): where the subject has the expert that the oracle has at each place.

    Experts that only one of them chose take the places that are left. None if both have one order.
    """
    if shown.shape != oracle.shape or np.array_equal(shown, oracle):
        return None
    same = oracle[:, :, None] == shown[:, None, :]
    order: NDArray[np.int64] = same.argmax(axis=-1)
    for row in np.flatnonzero(~same.any(axis=-1).all(axis=-1)):
        places = (np.flatnonzero(~same[row].any(axis=axis)) for axis in (1, 0))
        for ours, theirs in zip(*places, strict=False):  # ids that are shown twice leave fewer
            order[row, ours] = theirs
    return order


def reordered(value: NDArray[Any], order: NDArray[np.int64]) -> NDArray[Any]:
    """value: (tokens, used, ...) with each token's experts in another order."""
    wide = order.reshape(*order.shape, *[1] * (value.ndim - order.ndim))
    return np.take_along_axis(value, wide, axis=1)


# --- softmax, norms and SwiGLU ----------------------------------------------------------------


def softmax_of_float32_sum(
    truth: F32, bound: Bound, shown: NDArray[Any]
) -> tuple[NDArray[np.float64], Bound]:
    """The powers added up in float32, in any order, which ggml does in double.

    A sum of n of them is off by n roundings at most, and that is one factor for the whole row: it
    is what the row adds up to. Beside it each weight is held to llama.cpp's bound.
    """
    wide = truth.astype(np.float64)
    factor = shown.sum(axis=-1, keepdims=True, dtype=np.float64) / wide.sum(axis=-1, keepdims=True)
    most = np.count_nonzero(truth, axis=-1, keepdims=True) * tolerances.U
    off = np.clip(factor - 1, -most, most)
    return wide * (1 + np.where(np.isfinite(off), off, 0.0)), bound


def norms_of_float32_sums(x: F32, weight: F32, eps: float) -> Iterator[Other]:
    """The squares added up in float32, which ggml does in double.

    Of thousands of additions a bound could not tell much. But they are the same on every machine,
    given the number of partial sums, and whether a square is rounded before it is added.
    """
    for lanes in (1, 2, 4, 8, 16, 32, 64):
        for fused in (False, True):
            yield partial(norm_of_sum, x, weight, eps, lanes, fused)


def norm_of_sum(
    x: F32, weight: F32, eps: float, lanes: int, fused: bool, shown: NDArray[Any]
) -> tuple[F32, Bound]:
    wide = x.astype(np.float64)
    mean = sums_of_squares(x, lanes, fused)[:, None] / x.shape[-1]
    out = (wide / np.sqrt(mean + eps) * weight).astype(np.float32)
    return out, tolerances.rms_norm(x, out)


def sums_of_squares(x: F32, lanes: int, fused: bool) -> F32:
    """x: (tokens, width) -> (tokens,), in so many partial sums, which are added as a tree."""
    width = -(-x.shape[-1] // lanes) * lanes
    rows = np.zeros((len(x), width), np.float32)
    rows[:, : x.shape[-1]] = x
    rows = rows.reshape(len(x), -1, lanes)
    squares = np.square(rows, dtype=np.float64 if fused else np.float32)  # exact in float64
    total = np.zeros((len(x), lanes), np.float32)
    for i in range(rows.shape[1]):
        total = (total + squares[:, i]).astype(np.float32)
    while total.shape[-1] > 1:
        total = total[:, ::2] + total[:, 1::2]
    return total[:, 0]


def swiglu_ways(gate: F32, up: F32, out: F32) -> list[Other]:
    """Formulas that lose more than a share of the result where the gate is large and negative."""
    return [
        lambda _: (out, tolerances.swiglu_by_tanh(gate, up, out)),
        lambda _: (out, tolerances.swiglu_by_exp2(gate, up, out)),
    ]
