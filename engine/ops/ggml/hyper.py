"""Hyper-connections: several residual streams that are mixed before and after each block.

Source: ggml_compute_forward_dsv4_hc_* in ggml-cpu/ops.cpp of llama-cpp-python 0.3.36.
"""

import numpy as np

from lockstep.engine.node import Node
from lockstep.engine.ops import softmax
from lockstep.engine.ops.build import ANY_ENGINE, Build
from lockstep.engine.ops.ggml.base import meaning
from lockstep.engine.ops.near import Expected, Near, constant, exact, near, sigmoid, total

HC = 4  # number of streams; ggml supports no other


def normalise_comb(comb: Near, eps: float, axis: int) -> Near:
    sums = total(comb, HC, axis=axis) + constant(eps)
    return comb * (constant(1.0) / sums)


@meaning("DSV4_HC_COMB")
def comb(node: Node, _: Build) -> Expected:
    """Return the softmax over targets. Its columns and rows are then scaled alternately to sums of
    one (Sinkhorn).
    """
    eps, rounds = float(node.floats()[0]), int(node.params[1])
    tokens = node.ne[2]
    mixes = node.wide(0)[0, 0, :, 2 * HC :].reshape(tokens, HC, HC)  # (tokens, source, target)
    base = node.wide(2).reshape(-1)[2 * HC :].reshape(HC, HC)
    s = exact(mixes) * constant(float(node.wide(1).reshape(-1)[2])) + exact(base)
    powers, sums = softmax.weights(s, ANY_ENGINE, None, HC)
    out = normalise_comb(near(powers * (1.0 / sums)) + constant(eps), eps, -2)
    for _round in range(1, rounds):
        out = normalise_comb(normalise_comb(out, eps, -1), eps, -2)
    return Near(out.v[None], np.asarray(out.r)[None]).expect(f"softmax, {rounds} times Sinkhorn")


@meaning("DSV4_HC_PRE")
def pre(node: Node, _: Build) -> Expected:
    """Return the streams' weighted sum: (tokens, width)."""
    scale, gated = float(node.floats()[0]), bool(node.params[1])
    x = node.wide(0)[0]  # (tokens, streams, width)
    weights = sigmoid(exact(node.wide(1)[0])) if gated else exact(node.wide(1)[0, 0][..., None])
    near = total(exact(x) * weights, HC, axis=1, keep=False) * constant(scale)
    return Near(near.v[None, None], np.asarray(near.r)[None, None]).expect("a sum of streams")


@meaning("DSV4_HC_POST")
def post(node: Node, _: Build) -> Expected:
    """Return x * post + the residual streams mixed by `comb`; without `comb` each stream stays
    unmixed."""
    x, residual = node.wide(0)[0, 0], exact(node.wide(1)[0])
    out = exact(x[:, None, :]) * exact(node.wide(2)[0, 0][..., None])
    if node.optional(3) is None:
        out = out + residual
    else:
        mix = node.wide(3)[0]  # (tokens, source, target)
        for source in range(residual.v.shape[1]):
            out = out + residual[:, source, None] * exact(mix[:, source, :, None])
    return Near(out.v[None], np.asarray(out.r)[None]).expect("a sum of streams")
