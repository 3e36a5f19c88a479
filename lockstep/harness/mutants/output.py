"""The end of a graph, wrong: the last norm, the head, the cap, which row."""

from typing import Any

import numpy as np

from lockstep.engine.model import Model
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.mutants.base import Mutant
from lockstep.harness.mutants.parts.changed import change_weights, ops_with
from lockstep.harness.mutants.parts.mistakes import Mistake

HEADS = ("output.weight", "token_embd.weight")


class LastNorm(Mistake):
    """What becomes of the last norm of a run."""

    group = "output"
    site = "result_norm"
    layer = None

    def change(self, model: Model) -> None:
        right, calls = model.ops.rms_norm, [0]
        per_run = 1 + 2 * model.graph.hparams.n_layer

        def rms_norm(x: F32, weight: F32, eps: float) -> F32:
            calls[0] += 1
            return (
                self.last(x, right(x, weight, eps))
                if calls[0] % per_run == 0
                else right(x, weight, eps)
            )

        model.ops.rms_norm = rms_norm  # type: ignore[method-assign]

    @staticmethod
    def last(x: F32, normed: F32) -> F32:
        raise NotImplementedError


class LastNormMissing(LastNorm, name="mutant:last-norm-missing"):
    mistake = "no norm before the head"
    effect = "logits too large or too small; greedy text nearly right"

    @staticmethod
    def last(x: F32, normed: F32) -> F32:
        return x


class LastNormOfPromptsOnly(LastNorm, name="mutant:last-norm-of-prompts-only"):
    mistake = "the way that decodes single tokens lacks the last norm"
    effect = "the first token is right, and no other"

    @staticmethod
    def last(x: F32, normed: F32) -> F32:
        return normed if len(x) > 1 else x


class LastNormTwice(LastNorm, name="mutant:last-norm-twice"):
    mistake = "the last norm is applied twice"
    effect = "greedy text nearly right"

    @staticmethod
    def last(x: F32, normed: F32) -> F32:
        found: F32 = normed / np.sqrt((normed**2).mean(axis=-1, keepdims=True))
        return found


class LastNormOfLayer(Mistake, name="mutant:last-norm-of-a-layer"):
    mistake = "the last norm takes the weight of the last layer's"
    group = "output"
    effect = "text is worse"
    site = "result_norm"
    layer = None

    def change(self, model: Model) -> None:
        def changed(read: Any, name: str) -> Weight:
            weight: Weight = read("blk.1.ffn_norm.weight" if name == "output_norm.weight" else name)
            return weight

        change_weights(model, changed)


class HeadAlwaysTied(Mistake, name="mutant:head-always-tied"):
    mistake = "the head is the table of embeddings, though the file has another"
    group = "output"
    effect = "noise from the first token on"
    source = "1bit-MONSTER #319"
    site = "result_output"
    layer = None

    def change(self, model: Model) -> None:
        tied = model.graph.tensors["token_embd.weight"]
        model.graph.head = lambda: tied  # type: ignore[method-assign]


class Head(Mutant):
    """What becomes of logits."""

    group = "output"
    site = "result_output"
    layer = None

    def make_model(self) -> Model:
        model = super().make_model()
        right = model.ops.linear

        def linear(x: F32, weight: Weight) -> F32:
            out = right(x, weight)
            return self.logits(out) if weight.name in HEADS else out

        model.ops.linear = linear  # type: ignore[method-assign]
        return model

    @staticmethod
    def logits(right: F32) -> F32:
        raise NotImplementedError


class RowBefore(Head, name="mutant:logits-of-the-row-before"):
    mistake = "each token of a batch gets the logits of the one before"
    effect = "the first token of an answer is a token of the prompt"

    @staticmethod
    def logits(right: F32) -> F32:
        return np.roll(right, 1, axis=0)


class LastRowOnly(Head, name="mutant:logits-of-last-row-only"):
    mistake = "all tokens of a batch get the logits of the last"
    effect = "text is right, and probabilities of prompts are not"

    @staticmethod
    def logits(right: F32) -> F32:
        return np.broadcast_to(right[-1:], right.shape).copy()


class LastColumnLost(Head, name="mutant:last-logit-lost"):
    mistake = "the last token of the vocabulary has no logit"
    effect = "nothing, until that token is due"

    @staticmethod
    def logits(right: F32) -> F32:
        right[:, -1] = 0
        return right


class LogitsInHalf(Head, name="mutant:logits-in-half"):
    mistake = "logits are rounded to half precision"
    effect = "ties of tokens that are nearly alike"

    @staticmethod
    def logits(right: F32) -> F32:
        return right.astype(np.float16).astype(np.float32)


class LogitsInBf16(Head, name="mutant:logits-in-bf16"):
    mistake = "logits are cut off to BF16"
    effect = "ties of tokens that are nearly alike"

    @staticmethod
    def logits(right: F32) -> F32:
        return (right.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


class LogProbabilities(Head, name="mutant:log-probabilities-for-logits"):
    mistake = "logarithms of probabilities are given as logits"
    effect = "text is right; whoever scales logits is not"

    @staticmethod
    def logits(right: F32) -> F32:
        wide = right.astype(np.float64)
        found: F32 = (wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))).astype(np.float32)
        return found


class LogitsWarm(Head, name="mutant:logits-warm"):
    mistake = "logits are divided by a temperature of 0.8 that nobody set"
    effect = "greedy text is right; sampled text is too sure of itself"

    @staticmethod
    def logits(right: F32) -> F32:
        return right / np.float32(0.8)


class LogitCapMissing(Mutant, name="mutant:logit-cap-missing"):
    ops = ops_with(soft_cap=lambda ops, x, cap: x if cap == 3 else Mirror.soft_cap(ops, x, cap))
    mistake = "Gemma 2's cap of the logits is left out"
    group = "output"
    effect = "greedy text is right; probabilities are not"
    shows_on = "arch:gemma2"
    site = "result_output"
    layer = None


class CapClips(Mutant, name="mutant:logit-cap-clips"):
    ops = ops_with(
        soft_cap=lambda ops, x, cap: (
            np.clip(x, -cap, cap).astype(np.float32) if cap == 3 else Mirror.soft_cap(ops, x, cap)
        )
    )
    mistake = "logits are clipped at the cap"
    group = "output"
    effect = "the likeliest tokens are all alike"
    shows_on = "arch:gemma2"
    site = "result_output"
    layer = None


class CapOfScores(Mutant, name="mutant:logit-cap-of-scores"):
    ops = ops_with(soft_cap=lambda ops, x, cap: Mirror.soft_cap(ops, x, 5.0))
    mistake = "logits are capped by the cap of attention's scores"
    group = "output"
    effect = "greedy text is right; probabilities are not"
    shows_on = "arch:gemma2"
    site = "result_output"
    layer = None


class CapNotMultiplied(Mutant, name="mutant:logit-cap-not-multiplied"):
    ops = ops_with(
        soft_cap=lambda ops, x, cap: (
            np.tanh(x / np.float32(cap)) if cap == 3 else Mirror.soft_cap(ops, x, cap)
        )
    )
    mistake = "the hyperbolic tangent is not multiplied by the cap again"
    group = "output"
    effect = "greedy text is right; sampled text is noise"
    shows_on = "arch:gemma2"
    site = "result_output"
    layer = None
