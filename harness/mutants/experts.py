"""Mistakes in mixtures of experts: the choice, the weights, the sum."""

from typing import Any

import numpy as np

from lockstep.engine.architectures.step import Step
from lockstep.engine.ops.reference import I32, Bools
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.mutants.parts.mistakes import Mistake, Op

VAGUE = "text is fluent but off topic"
NONSENSE = "text is nonsense from the first token on"


class WrongExperts(Mistake):
    group = "experts"
    effect = VAGUE
    shows_on = "moe"


# --- the choice ---------------------------------------------------------------------------------


WrongExperts.add_fault(
    "experts-sigmoid-for-softmax",
    "a sigmoid is used in place of a router's softmax",
    shows_on="arch:qwen3moe",
    site="ffn_moe_probs",
    soft_max=lambda self, right, x, scale, visible: (
        right(x, scale, visible) if x.ndim == 3 else self.loaded.ops.sigmoid(x)
    ),
)
WrongExperts.add_fault(
    "experts-softmax-for-sigmoid",
    "expert_gating_func is ignored, so a softmax replaces the sigmoid",
    shows_on="arch:deepseek2",
    site="ffn_moe_probs",
    layer=1,
    sigmoid=lambda self, right, x: self.loaded.ops.soft_max(x, 1.0, None),
)
WrongExperts.add_fault(
    "experts-softmax-over-tokens",
    "a router's softmax goes over the tokens of the batch",
    site="ffn_moe_probs",
    soft_max=lambda self, right, x, scale, visible: (
        right(x, scale, visible) if x.ndim == 3 else right(x.T, scale, visible).T
    ),
)
WrongExperts.add_fault(
    "experts-least-liked",
    "the least likely experts are chosen",
    NONSENSE,
    site="ffn_moe_topk",
    top_k=lambda self, right, probs, n: right(-probs, n),
)
# no element compares as less, so the order stays
WrongExperts.add_fault(
    "experts-not-sorted",
    "experts are sorted by a comparison that returns a boolean instead of a sign",
    NONSENSE,
    site="ffn_moe_topk",
    top_k=lambda self, right, probs, n: right(
        -np.broadcast_to(np.arange(probs.shape[-1], dtype=np.float32), probs.shape), n
    ),
)


class ChosenForFirst(WrongExperts, name="mutant:experts-of-the-first-token"):
    mistake = "all tokens of a batch go to the experts of the first token"
    effect = "prompts are misunderstood; single tokens are right"
    site = "ffn_moe_topk"

    def top_k(self, right: Op, probs: F32, n: int) -> F32:
        ids = right(probs, n)
        return np.broadcast_to(ids[:1], ids.shape).copy()


class BiasIgnored(WrongExperts, name="mutant:experts-bias-ignored"):
    mistake = "exp_probs_b is not added before experts are chosen"
    shows_on = "arch:deepseek2"
    site = "ffn_moe_probs_biased"
    layer = 1

    def add(self, right: Op, a: F32, b: F32) -> F32:
        is_choice = b.ndim == 1 and len(b) == self.loaded.graph.hparams.n_expert
        return a if is_choice else right(a, b)


class RouterInBf16(WrongExperts, name="mutant:experts-router-bf16"):
    mistake = "the router reads its activations in BF16"
    effect = "now and then another expert is chosen; text drifts"
    site = "ffn_moe_logits"

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        if "ffn_gate_inp" in weight.name:
            x = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        return right(x, weight)


BiasIgnored.add_fault(
    "experts-router-bias-missing",
    "the bias of the router of gpt-oss is not added",
    shows_on="arch:gpt-oss",
    site="ffn_moe_probs",
    layer=0,
)


# --- weights ------------------------------------------------------------------------------------


class NotNormalised(WrongExperts, name="mutant:experts-not-normalised"):
    mistake = "weights of chosen experts do not sum to one: norm_topk_prob is false by default"
    source = "transformers #41151"
    shows_on = "arch:qwen3moe"
    site = "ffn_moe_weights_norm"

    def normalise(self, right: Op, weights: F32) -> F32:
        return weights


NotNormalised.add_fault(
    "experts-not-normalised-llama",
    "in Mixtral, weights of the chosen experts do not sum to one",
    shows_on="moe",
)
WrongExperts.add_fault(
    "experts-divided-by-the-largest",
    "weights are divided by the largest weight, not by their sum",
    site="ffn_moe_weights_norm",
    normalise=lambda self, right, weights: weights / weights.max(axis=-1, keepdims=True),
)
WrongExperts.add_fault(
    "experts-always-normalised",
    "weights of chosen experts are normalised, whatever expert_weights_norm says",
    shows_on="deepseek2-lite",
    site="ffn_moe_weights",
    layer=1,
    pick=lambda self, right, probs, ids: self.loaded.ops.normalise(right(probs, ids)),
)
WrongExperts.add_fault(
    "experts-softmax-over-chosen",
    "a softmax covers only the chosen experts, but the model needs all",
    source="mlxcel #391",
    shows_on="deepseek2-lite",
    site="ffn_moe_weights",
    layer=1,
    pick=lambda self, right, probs, ids: self.loaded.ops.soft_max(
        np.log(right(probs, ids)), 1.0, None
    ),
)


class SoftmaxOverAll(WrongExperts, name="mutant:experts-softmax-over-all"):
    mistake = "the softmax of gpt-oss covers all experts instead of the chosen ones"
    shows_on = "arch:gpt-oss"
    site = "ffn_moe_weighted"
    seen: tuple[F32, I32]

    def pick(self, right: Op, probs: F32, ids: I32) -> F32:
        self.seen = probs, ids
        return right(probs, ids)

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        if x.ndim == 3:
            return right(x, scale, visible)
        scores, ids = self.seen
        return np.take_along_axis(right(scores, scale, visible), ids.astype(np.int64), axis=-1)


WrongExperts.add_fault(
    "experts-weights-by-id",
    "weights are in the order of ids, but experts are in the order of rank",
    site="ffn_moe_weights",
    pick=lambda self, right, probs, ids: right(probs, np.sort(ids, axis=-1)),
)
WrongExperts.add_fault(
    "experts-weights-reversed",
    "weights are in ascending order, but experts are in the order of rank",
    site="ffn_moe_weights",
    pick=lambda self, right, probs, ids: right(probs, ids[..., ::-1]),
)


class BiasInWeights(WrongExperts, name="mutant:experts-bias-in-weights"):
    mistake = "exp_probs_b changes the weights, and not only the choice of experts"
    shows_on = "arch:deepseek2"
    site = "ffn_moe_weights"
    layer = 1
    choice: F32

    def top_k(self, right: Op, probs: F32, n: int) -> F32:
        self.choice = probs
        return right(probs, n)

    def pick(self, right: Op, probs: F32, ids: I32) -> F32:
        return right(self.choice, ids)


WrongExperts.add_fault(
    "experts-weights-scale-ignored",
    "expert_weights_scale is not read",
    shows_on="arch:deepseek2",
    site="ffn_moe_weights_scaled",
    layer=1,
    scale=lambda self, right, x, factor: x,
)
WrongExperts.add_fault(
    "experts-not-weighted",
    "results of experts are added up without their weights",
    source="Jlama #201",
    site="ffn_moe_weighted",
    mul=lambda self, right, a, b: a if a.ndim == 3 else right(a, b),
)


class OneFewer(WrongExperts, name="mutant:experts-one-fewer"):
    mistake = "the last of the chosen experts has weight 0"
    site = "ffn_moe_weights"

    def pick(self, right: Op, probs: F32, ids: I32) -> F32:
        out = right(probs, ids)
        out[..., -1] = 0
        return out


class InputsWeighted(WrongExperts, name="mutant:experts-inputs-weighted"):
    mistake = "weights multiply the inputs of experts, not their outputs"
    site = "ffn_moe_up"
    weights: F32

    def normalise(self, right: Op, weights: F32) -> F32:
        self.weights = right(weights)
        return self.weights

    def linear_id(self, right: Op, x: F32, weight: Weight, ids: I32) -> F32:
        reads = "_down_" not in weight.name
        return right(x * self.weights[..., None] if reads else x, weight, ids)

    def mul(self, right: Op, a: F32, b: F32) -> F32:
        return a if a.ndim == 3 else right(a, b)


# --- results of experts -------------------------------------------------------------------------


WrongExperts.add_fault(
    "experts-ids-from-one",
    "the matrix of the next expert is used",
    NONSENSE,
    site="ffn_moe_up",
    linear_id=lambda self, right, x, weight, ids: right(x, weight, (ids + 1) % weight.shape[0]),
)


class DownOfTheFirst(WrongExperts, name="mutant:experts-down-of-the-first"):
    mistake = "all chosen experts use the down matrix of the first one"
    site = "ffn_moe_down"

    def linear_id(self, right: Op, x: F32, weight: Weight, ids: I32) -> F32:
        one = np.broadcast_to(ids[:, :1], ids.shape)
        return right(x, weight, one if "_down_" in weight.name else ids)


class Capacity(WrongExperts, name="mutant:experts-of-limited-capacity"):
    mistake = "an expert takes only 12 tokens of a batch and ignores later tokens"
    effect = "prompts are misunderstood; single tokens are right"
    site = "ffn_moe_down"

    def linear_id(self, right: Op, x: F32, weight: Weight, ids: I32) -> F32:
        out = right(x, weight, ids)
        if "_down_" in weight.name:
            for expert in np.unique(ids):
                rows, used = np.nonzero(ids == expert)
                out[rows[12:], used[12:]] = 0
        return out


WrongExperts.add_fault(
    "experts-gate-and-up-exchanged",
    "the gate and the gated values are exchanged",
    site="ffn_moe_swiglu",
    swiglu=lambda self, right, gate, up: right(up, gate),
)


class DownBiasMissing(WrongExperts, name="mutant:experts-down-bias-missing"):
    mistake = "the down bias of the experts of gpt-oss is not added"
    shows_on = "arch:gpt-oss"
    site = "ffn_moe_down_biased"

    def graph_by_expert(self, right: Op, *args: Any) -> F32:
        step, layer, site, x, name, ids = args
        if name != "ffn_down_exps":
            return right(*args)
        weight = self.loaded.graph.tensors.in_layer(layer, f"{name}.weight")
        out: F32 = step.probe(site, layer, step.ops.linear_id(x, weight, ids))
        out = step.probe(f"{site}_biased", layer, out)
        return out


WrongExperts.add_fault(
    "experts-last-not-added",
    "the result of the last chosen expert is not added",
    site="ffn_moe_out",
    sum_experts=lambda self, right, x: right(x[:, :-1]),
)
WrongExperts.add_fault(
    "experts-averaged",
    "results of chosen experts are averaged, though their weights sum to one",
    site="ffn_moe_out",
    sum_experts=lambda self, right, x: right(x) / np.float32(x.shape[1]),
)


class Shared(WrongExperts):
    """A mistake in the output of the shared expert, which all tokens use."""

    shows_on = "arch:deepseek2"
    site = "ffn_out"
    layer = 1
    factor = np.float32(0)

    def graph_feed_forward(self, right: Op, step: Step, layer: int, x: F32, kind: str = "") -> F32:
        out = right(step, layer, x, kind)
        return out * self.factor if kind else out


Shared.add_fault("experts-shared-missing", "the shared expert is computed but not added")
Shared.add_fault(
    "experts-shared-scaled",
    "expert_weights_scale is applied to the shared expert as well",
    factor=np.float32(1.5),
)
Shared.add_fault("experts-shared-twice", "the shared expert is added twice", factor=np.float32(2))
