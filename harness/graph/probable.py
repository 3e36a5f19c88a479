"""Probable errors of the sums in a product, for an honest run with any order of addition.

A bound holds in the worst case, in which all roundings go the same way and no terms cancel. For a
row of a thousand terms, it is a hundred times the error of a scalar loop. So runs that are off by a
share of the bound do not resemble real runs. Real roundings go up as often as down, so the total
error grows with the root of the number of roundings.

Source: N. J. Higham and T. Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM
Journal on Scientific Computing 41(5), 2019.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.node import Node
from lockstep.engine.ops.ggml.products import matrix
from lockstep.engine.ops.near import F64, LARGEST, U
from lockstep.engine.ops.sums import in_order
from lockstep.engine.weights import Weight

PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")
# number of rows; their mean deviates from the mean of all rows by at most an eighth of the spread
SAMPLED = 64
FEWER = 4  # one in so many of these shows an order that all rows share
PIECE = 1 << 15  # sums at a time: half a dozen arrays of this size fit into a processor's cache
STRETCHES = 8  # parts of a row; the partial sum is read after each part


def error_of_product(node: Node, value: F64) -> F64:
    """Return a product's probable error, in the value's shape."""
    squares = of_experts(node) if node.op == "MUL_MAT_ID" else of_matrices(node)
    return error_of_sums(value, squares, node.source(0).ne[0])


def of_matrices(node: Node) -> F64:
    """Return the sums of the squared terms, (.., tokens, rows); or their mean over many rows, (..,
    tokens, 1)."""
    a, b = node.source(0), node.wide(1)
    found = np.empty((*b.shape[:-1], a.ne[1] if a.ne[1] <= SAMPLED else 1))
    per3, per2 = b.shape[0] // a.ne[3], b.shape[1] // a.ne[2]
    for i3, i2 in np.ndindex(a.ne[3], a.ne[2]):
        part = slice(i3 * per3, (i3 + 1) * per3), slice(i2 * per2, (i2 + 1) * per2)
        some = squared_terms(b[part].reshape(-1, b.shape[-1]), matrix(a, i3, i2))
        found[part] = some.reshape(found[part].shape)
    return found


def of_experts(node: Node) -> F64:
    """Return the sums of the squared terms of each token with its experts' matrices, (1, tokens,
    used, 1 or rows)."""
    experts, b, ids = node.source(0), node.wide(1)[0], node.source(2).value
    assert ids is not None
    chosen = ids[0, 0]
    x = np.broadcast_to(b, (*chosen.shape, b.shape[-1]))
    found = np.empty((*chosen.shape, experts.ne[1] if experts.ne[1] <= SAMPLED else 1))
    for expert in np.unique(chosen):
        at = chosen == expert
        found[at] = squared_terms(x[at], matrix(experts, 0, int(expert)))
    return found[None]


def error_of_sums(value: F64, squares: F64, terms: int) -> F64:
    """Return an error bound. A random share of it covers the error of one float32 sum, added term
    by term.

    value: the sum; squares: the sum of its squared terms (`squared_terms`), in a shape that
    broadcasts; terms: their number.

    Each of n additions is off by at most U times its partial sum. Errors without a preferred
    direction add up as their squares do. For n terms t with the sum s, in an order that does not
    depend on their size, the mean square of a partial sum is at most sum(t^2) + s^2. So all errors
    together come to U * sqrt(n * (sum(t^2) + s^2)). A random share has a standard deviation of 0.58
    times this. A rounding's error has at most 0.58 U, and the squares of partial sums are on
    average half of their bound. An engine with several partial sums, or with integer blocks, has
    fewer roundings.

    The error is infinite if the magnitudes may exceed float32 (they are at most sqrt(n *
    sum(t^2))), because one order overflows, and another does not. The error is zero if a term is
    not finite, because every order then gives the same sum.
    """
    out, n = np.empty(value.shape), value.shape[-1]
    if not value.size:
        return out
    whole, of_rows = value.reshape(-1, n), squares.reshape(-1, squares.shape[-1])
    step = max(1, PIECE // n)
    for at in range(0, len(whole), step):
        rows = slice(at, at + step)
        out.reshape(-1, n)[rows] = error_of_some(whole[rows], of_rows[rows], terms)
    return out


def error_of_some(value: F64, squares: F64, terms: int) -> F64:
    with np.errstate(over="ignore", invalid="ignore"):
        found = U * np.sqrt(terms * (squares + np.square(value)))
        found = np.where(np.sqrt(terms * squares) > LARGEST, np.inf, found)
        return np.where(np.isfinite(value), found, 0.0)


def squared_terms(x: F64, weight: Weight) -> F64:
    """Return the sum of the squared terms. x: (tokens, columns); result: (tokens, rows), or
    (tokens, 1) with a mean for many rows.

    The order in the file may depend on the terms' size, for example with positive terms first.
    Partial sums are then larger, and the result is larger too: the result and the square of the
    whole sum together make the mean square of the partial sums.
    """
    some = rows_of(weight)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.square(some)
        if weight.shape[0] > SAMPLED:
            squares = squares.sum(axis=0, keepdims=True) / max(1, len(some))
        # the same bits on every CPU, because golden vectors contain such runs
        found = in_order(np.square(x), squares.T)
        few = some if weight.shape[0] <= SAMPLED else some[::FEWER]
        more = beyond_the_sum(x, few)
        if weight.shape[0] > SAMPLED:
            more = more.sum(axis=-1, keepdims=True) / max(1, len(few))
        larger: F64 = np.fmax(found, more)
        return larger


def beyond_the_sum(x: F64, rows: F64) -> F64:
    """Return the mean square of the partial sums from the first term on, minus the square of the
    whole sum, (tokens, rows)."""
    ends = np.linspace(0, x.shape[-1], STRETCHES + 1).astype(np.int64)
    partial, squares = np.zeros((len(x), len(rows))), np.zeros((len(x), len(rows)))
    for start, stop in pairwise(ends):
        partial += in_order(x[:, start:stop], rows[:, start:stop].T)
        squares += np.square(partial)
    return squares / STRETCHES - np.square(partial)


def rows_of(weight: Weight) -> F64:
    """Return at most SAMPLED rows that are finite and, if there are more rows than that, not
    zero."""
    every = np.arange(weight.shape[0])
    found = some_rows(weight, every)
    if len(every) > SAMPLED:
        if not found.any(axis=-1).all():
            found = some_rows(weight, every[weight.raw.reshape(len(every), -1).any(axis=-1)])
        found = found[np.isfinite(found).all(axis=-1)]
    return found


def some_rows(weight: Weight, rows: NDArray[np.int64]) -> F64:
    """Return at most SAMPLED of these rows, evenly spread, (rows, columns)."""
    some = np.linspace(0, max(0, len(rows) - 1), min(SAMPLED, len(rows))).astype(np.int64)
    with np.errstate(invalid="ignore"):  # a signalling NaN raises no warning
        return weight.take(rows[some]).astype(np.float64)
