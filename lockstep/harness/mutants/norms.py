"""Norms that are wrong: what is added where, what is divided by, which weight."""

from typing import Any

import numpy as np

from lockstep.engine.model import Model
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.base import Mutant
from lockstep.harness.mutants.parts.changed import ops_with
from lockstep.harness.mutants.parts.mistakes import Mistake

F16 = np.float16


def normed(x: F32, weight: F32, mean_square: Any, eps: float = 0.0) -> F32:
    wide = x.astype(np.float64)
    out: F32 = (wide / np.sqrt(mean_square + eps) * weight).astype(np.float32)
    return out


def square(x: F32) -> Any:
    return (x.astype(np.float64) ** 2).mean(axis=-1, keepdims=True)


def centred(x: F32) -> Any:
    wide = x.astype(np.float64)
    return wide - wide.mean(axis=-1, keepdims=True)


class EpsOutsideRoot(Mutant, name="mutant:eps-outside-root"):
    ops = ops_with(rms_norm=lambda ops, x, w, eps: normed(x, w, (np.sqrt(square(x)) + eps) ** 2))
    mistake = "eps is added to the root of the mean square"
    group = "norms"
    effect = "nothing that a reader sees; small activations are off"
    site = "attn_norm"


class EpsMissing(Mutant, name="mutant:eps-missing"):
    ops = ops_with(rms_norm=lambda ops, x, w, eps: normed(x, w, square(x)))
    mistake = "no eps at all"
    group = "norms"
    effect = "NaN for rows of zeros, nothing else"
    site = "attn_norm"


class RmsCentred(Mutant, name="mutant:rms-norm-centred"):
    ops = ops_with(
        rms_norm=lambda ops, x, w, eps: normed(
            centred(x), w, (centred(x) ** 2).mean(-1)[..., None], eps
        )
    )
    mistake = "the mean is subtracted in an RMS norm"
    group = "norms"
    effect = "text slightly off, worse in deep models"
    site = "attn_norm"


class NormWithoutWeight(Mutant, name="mutant:norm-without-weight"):
    ops = ops_with(rms_norm=lambda ops, x, w, eps: Mirror.rms_norm(ops, x, np.ones_like(w), eps))
    mistake = "the weight of a norm is not applied"
    group = "norms"
    effect = "text is off from the first token"
    site = "attn_norm"


class NormOneAddedTwice(Mutant, name="mutant:norm-one-added-twice"):
    ops = ops_with(rms_norm=lambda ops, x, w, eps: Mirror.rms_norm(ops, x, w + 1, eps))
    mistake = "1 is added to weights of Gemma's norms that contain it"
    group = "norms"
    effect = "noise from the first token on"
    source = "vLLM #31464, meganeura #188"
    shows_on = "arch:gemma3"
    site = "attn_norm"


class NormBySum(Mutant, name="mutant:norm-by-sum"):
    ops = ops_with(rms_norm=lambda ops, x, w, eps: normed(x, w, square(x) * x.shape[-1], eps))
    mistake = "the sum of squares in place of their mean"
    group = "norms"
    effect = "everything a norm passes on is too small"
    site = "attn_norm"


class WeightBeforeNorm(Mutant, name="mutant:weight-before-norm"):
    ops = ops_with(
        rms_norm=lambda ops, x, w, eps: Mirror.rms_norm(ops, x * w, np.ones_like(w), eps)
    )
    mistake = "the weight is applied before the row is measured"
    group = "norms"
    effect = "each row is off by a factor near one"
    site = "attn_norm"


class SquaresInHalf(Mutant, name="mutant:squares-in-half"):
    ops = ops_with(
        rms_norm=lambda ops, x, w, eps: normed(x, w, square(x).astype(F16).astype(float), eps)
    )
    mistake = "the mean square is kept in half precision"
    group = "norms"
    effect = "rows off by up to 5e-4; infinite for large activations"
    site = "attn_norm"


class NormInHalf(Mutant, name="mutant:norm-in-half"):
    ops = ops_with(
        rms_norm=lambda ops, x, w, eps: (
            Mirror.rms_norm(ops, x, w, eps).astype(F16).astype(np.float32)
        )
    )
    mistake = "what a norm gives is rounded to half precision"
    group = "norms"
    effect = "nothing that a reader sees"
    site = "attn_norm"


class NormOfFirstRow(Mutant, name="mutant:norm-of-first-row"):
    ops = ops_with(rms_norm=lambda ops, x, w, eps: normed(x, w, square(x)[:1], eps))
    mistake = "all tokens of a batch are scaled by the first one's mean square"
    group = "norms"
    effect = "prompts are read wrongly, single tokens rightly"
    site = "attn_norm"


class HeadsNormedTogether(Mutant, name="mutant:heads-normed-together"):
    ops = ops_with(
        rms_norm=lambda ops, x, w, eps: (
            normed(x, w, square(x).mean(axis=1, keepdims=True), eps)
            if x.ndim == 3
            else Mirror.rms_norm(ops, x, w, eps)
        )
    )
    mistake = "the norm of queries and keys is over all heads together"
    group = "norms"
    effect = "attention is sharper in some heads; text drifts"
    shows_on = "arch:qwen3"
    site = "Qcur_normed"


class HeadNormsExchanged(Mistake, name="mutant:head-norms-exchanged"):
    mistake = "the norms of queries and keys have each other's weights"
    group = "norms"
    effect = "text drifts"
    shows_on = "arch:qwen3"
    site = "Qcur_normed"

    def change(self, model: Model) -> None:
        right = model.graph.norm
        other = {"attn_q_norm": "attn_k_norm", "attn_k_norm": "attn_q_norm"}

        def norm(step: Any, layer: int, site: str, x: F32, name: str = "") -> F32:
            return right(step, layer, site, x, other.get(name, name))

        model.graph.norm = norm  # type: ignore[method-assign]


class HeadNormsMissing(Mutant, name="mutant:head-norms-missing"):
    ops = ops_with(
        rms_norm=lambda ops, x, w, eps: x if x.ndim == 3 else Mirror.rms_norm(ops, x, w, eps)
    )
    mistake = "queries and keys are not normed"
    group = "norms"
    effect = "attention far too sharp or too flat"
    shows_on = "arch:qwen3"
    site = "Qcur_normed"


class PostNormMissing(Mistake, name="mutant:post-norm-missing"):
    mistake = "Gemma's norm behind attention is left out"
    group = "norms"
    effect = "activations grow from layer to layer"
    shows_on = "arch:gemma2"
    site = "attn_post_norm"

    def change(self, model: Model) -> None:
        right = model.graph.norm

        def norm(step: Any, layer: int, site: str, x: F32, name: str = "") -> F32:
            if name == "post_attention_norm":
                shown: F32 = step.probe(site, layer, x)
                return shown
            return right(step, layer, site, x, name)

        model.graph.norm = norm  # type: ignore[method-assign]


class LayerNormUncentred(Mutant, name="mutant:layer-norm-uncentred"):
    ops = ops_with(layer_norm=lambda ops, x, w, b, eps: Mirror.rms_norm(ops, x, w, eps) + b)
    mistake = "the mean is not subtracted in a layer norm"
    group = "norms"
    effect = "text is off from the first token"
    shows_on = "arch:gpt2"
    site = "attn_norm"


class LayerNormWithoutBias(Mutant, name="mutant:layer-norm-without-bias"):
    ops = ops_with(
        layer_norm=lambda ops, x, w, b, eps: Mirror.layer_norm(ops, x, w, np.zeros_like(b), eps)
    )
    mistake = "the bias of a layer norm is not added"
    group = "norms"
    effect = "text is off from the first token"
    shows_on = "arch:gpt2"
    site = "attn_norm"


class LayerNormUnbiasedVariance(Mutant, name="mutant:layer-norm-of-sample-variance"):
    ops = ops_with(
        layer_norm=lambda ops, x, w, b, eps: (
            normed(centred(x), w, (centred(x) ** 2).sum(-1)[..., None] / (x.shape[-1] - 1), eps) + b
        )
    )
    mistake = "the variance of a layer norm is divided by n - 1"
    group = "norms"
    effect = "nothing that a reader sees: off by 1 / 2n"
    shows_on = "arch:gpt2"
    site = "attn_norm"


class LayerNormEpsOutside(Mutant, name="mutant:layer-norm-eps-outside"):
    ops = ops_with(
        layer_norm=lambda ops, x, w, b, eps: (
            normed(centred(x), w, (np.sqrt(square(centred(x))) + eps) ** 2) + b
        )
    )
    mistake = "eps is added to the deviation of a layer norm, not to the variance"
    group = "norms"
    effect = "embeddings off in the sixth digit"
    shows_on = "arch:bert"
    site = "inp_norm"
