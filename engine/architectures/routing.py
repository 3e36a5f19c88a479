"""A mixture of experts: the choice of experts for a token, their weights and their summed outputs.

From the published definitions (MixtralSparseMoeBlock and DeepseekV3TopkRouter of transformers).
"""

from lockstep.engine.architectures.base import Architecture
from lockstep.engine.architectures.step import Step
from lockstep.engine.ops.reference import I32
from lockstep.engine.quants.base import F32


def route_experts(
    arch: Architecture,
    step: Step,
    layer: int,
    x: F32,
    *,
    sigmoid: bool = False,
    normalise: bool = True,
    scale: float = 1.0,
) -> F32:
    """Route tokens to experts: x (tokens, width) -> (tokens, width).

    A bias of the router affects the choice of experts, but not their weights.
    """
    ops, probe, w = step.ops, step.probe, arch.tensors
    logits = arch.linear(step, layer, "ffn_moe_logits", x, "ffn_gate_inp")  # (tokens, experts)
    probs = ops.sigmoid(logits) if sigmoid else ops.soft_max(logits, 1.0, None)
    choice = probs = probe("ffn_moe_probs", layer, probs)
    if f"blk.{layer}.exp_probs_b.bias" in w:
        choice = ops.add(probs, w.in_layer(layer, "exp_probs_b.bias").values())
        choice = probe("ffn_moe_probs_biased", layer, choice)
    ids = probe("ffn_moe_topk", layer, ops.top_k(choice, arch.hparams.n_expert_used))
    weights = probe("ffn_moe_weights", layer, ops.pick(probs, ids))  # (tokens, used)
    if normalise:
        weights = probe("ffn_moe_weights_norm", layer, ops.normalise(weights))
    if scale not in (0, 1):
        weights = probe("ffn_moe_weights_scaled", layer, ops.scale(weights, scale))
    return mixture(arch, step, layer, x, ids, weights)


def mixture(arch: Architecture, step: Step, layer: int, x: F32, ids: I32, weights: F32) -> F32:
    """Compute the mixture of the chosen experts. ids, weights: (tokens, used)."""
    ops, probe = step.ops, step.probe
    w_up, w_gate, w_down = (
        arch.tensors.in_layer(layer, f"ffn_{k}_exps.weight") for k in ("up", "gate", "down")
    )
    x = x[:, None, :]  # the same row for each chosen expert
    up = probe("ffn_moe_up", layer, ops.linear_id(x, w_up, ids))  # (tokens, used, n_ff)
    gate = probe("ffn_moe_gate", layer, ops.linear_id(x, w_gate, ids))
    h = probe("ffn_moe_swiglu", layer, ops.swiglu(gate, up))
    h = probe("ffn_moe_down", layer, ops.linear_id(h, w_down, ids))  # (tokens, used, width)
    h = probe("ffn_moe_weighted", layer, ops.mul(h, weights[..., None]))
    out: F32 = probe("ffn_moe_out", layer, ops.sum_experts(h))
    return out
