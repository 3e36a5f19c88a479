"""Mixtures of experts: the choice of experts, their buckets, and the sum of their results."""

import numpy as np

from lockstep.engine.ops import softmax
from lockstep.engine.ops.build import ANY_ENGINE
from lockstep.engine.ops.fused.base import Call, Result, expect_copy, operation, product
from lockstep.engine.ops.fused.norms import rms_normed
from lockstep.engine.ops.near import F64, Near, exact, near, rearrange, silu, total

REASON = "products summed in any order"


@operation("route_topk_softmax")
def route_topk_softmax(call: Call) -> dict[str, Result]:
    """Choose experts. logits: (tokens, experts) -> ids (tokens, top_k), the largest first, and
    their weights.

    Weights are shares of the softmax over all experts, or over the chosen experts with
    `norm_topk_prob`.
    """
    logits, k = call["logits"], call.number("top_k")
    ids = np.argsort(-logits, axis=-1, kind="stable")[:, :k].astype(np.int32)
    powers, sums = softmax.weights(exact(logits), ANY_ENGINE, None, logits.shape[-1])
    shares = powers / sums
    chosen = near(rearrange(shares, lambda x: np.take_along_axis(x, ids.astype(np.int64), axis=-1)))
    if call.number("norm_topk_prob"):
        chosen = chosen / total(chosen, k)
    return {"ids": expect_copy(ids), "weights": chosen.expect("powers summed in any order")}


@operation("moe_buckets")
def moe_buckets(call: Call) -> dict[str, Result]:
    """Sort pairs of token and slot by expert. selected: (tokens, top_k) -> tpe, the number of pairs
    of each expert, and ids, the pairs.

    ids: (experts, tokens * top_k); only the first `tpe` ids of a row are used. The id of a pair is
    token * top_k + slot.
    """
    selected = call.inputs["selected"].reshape(-1)
    experts = call.number("num_experts")
    ids = np.zeros((experts, selected.size), np.int32)
    tpe = np.bincount(selected, minlength=experts).astype(np.int32)
    for expert in range(experts):
        ids[expert, : tpe[expert]] = np.flatnonzero(selected == expert)
    return {"tpe": expect_copy(tpe), "ids": expect_copy(ids)}


def weigh_slots(slots: F64, weights: F64) -> Near:
    """Return the weighted sum of slots: (.., slots, width) and (.., slots) -> (.., width)."""
    terms = exact(slots) * exact(weights[..., None])
    return total(terms, slots.shape[-2], axis=-2, keep=False)


@operation("weighted_sum_stacked")
def weighted_sum_stacked(call: Call) -> dict[str, Result]:
    """Add the slots by weight. slots: (n, hidden), weights: (n) -> (hidden)"""
    return {"y": weigh_slots(call["slots"], call["weights"]).expect(REASON)}


@operation("weighted_sum_batched")
def weighted_sum_batched(call: Call) -> dict[str, Result]:
    """Add the slots of each token by weight. slots: (tokens, top_k, hidden), weights: (tokens,
    top_k) -> (tokens, hidden)"""
    return {"y": weigh_slots(call["slots"], call["weights"]).expect(REASON)}


@operation("weighted_sum_batched_offset")
def weighted_sum_batched_offset(call: Call) -> dict[str, Result]:
    """Add weighted slots. The weights are read at an offset, and the result is written at an
    offset; all other elements of `out` stay unchanged.
    """
    slots, at, to = call["slots"], call.number("weights_offset"), call.number("out_offset")
    weights = call["weights"][at : at + slots.shape[0] * slots.shape[1]].reshape(slots.shape[:2])
    found = weigh_slots(slots, weights).expect(REASON)
    value, allowed = call["out"].copy(), np.zeros(call["out"].shape)
    part = slice(to, to + found.value.size)
    value[part], allowed[part] = found.value.reshape(-1), np.asarray(found.allowed).reshape(-1)
    return {"out": type(found)(value, allowed, found.reason)}


def added_to_residual(call: Call) -> Near:
    """Add slots and residual in one sum. The residual may come first or last, or be added after a
    rounding.
    """
    found = weigh_slots(call["slots"], call["weights"])
    n = call["slots"].shape[-2]
    wide = np.abs(call["residual"]) + (
        np.abs(call["slots"]) * np.abs(call["weights"][:, None])
    ).sum(0)
    out = call.exact("residual") + found
    return Near(out.v, np.asarray(out.r) + (n + 1) * 2.0**-24 * wide)


@operation("weighted_sum_residual_stacked")
def weighted_sum_residual_stacked(call: Call) -> dict[str, Result]:
    return {"residual": added_to_residual(call).expect(REASON)}


@operation("weighted_sum_residual_norm_stacked")
def weighted_sum_residual_norm_stacked(call: Call) -> dict[str, Result]:
    residual = added_to_residual(call)
    near = rms_normed(residual, call.exact("weight"), call.real("eps"))
    return {"residual": residual.expect(REASON), "y": near.expect(REASON)}


@operation("moe_gate_up_silu")
def moe_gate_up_silu(call: Call) -> dict[str, Result]:
    """Apply the gate and up matrices of a mixture of experts. x: (tokens, k), gate, up: (experts,
    ffn, k), ids: (tokens, top_k) -> (tokens, top_k, ffn): silu(gate x) * (up x) of the experts
    chosen.
    """
    x, ids = call["x"], call.inputs["ids"]
    both = [product(call[name][ids], x[:, None, :, None]) for name in ("gate", "up")]
    gate, up = (Near(n.v[..., 0], np.asarray(n.r)[..., 0]) for n in both)
    return {"y": near(silu(gate) * up).expect(REASON)}
