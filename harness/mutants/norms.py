"""Mistakes in norms: eps, divisor, weight."""

from typing import Any

import numpy as np

from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.parts.mistakes import Mistake

F16 = np.float16
OTHER_NORM = {"attn_q_norm": "attn_k_norm", "attn_k_norm": "attn_q_norm"}


def normalise(x: F32, weight: F32, mean_square: Any, eps: float = 0.0) -> F32:
    wide = x.astype(np.float64)
    out: F32 = (wide / np.sqrt(mean_square + eps) * weight).astype(np.float32)
    return out


def square(x: F32) -> Any:
    return (x.astype(np.float64) ** 2).mean(axis=-1, keepdims=True)


def centre(x: F32) -> Any:
    wide = x.astype(np.float64)
    return wide - wide.mean(axis=-1, keepdims=True)


class WrongNorm(Mistake):
    group = "norms"
    site = "attn_norm"


WrongNorm.add_fault(
    "eps-outside-root",
    "eps is added to the root of the mean square",
    "no effect that a reader sees; small activations are off",
    rms_norm=lambda self, right, x, w, eps: normalise(x, w, (np.sqrt(square(x)) + eps) ** 2),
)
WrongNorm.add_fault(
    "eps-missing",
    "no eps at all",
    "NaN for rows of zeros, nothing else",
    rms_norm=lambda self, right, x, w, eps: normalise(x, w, square(x)),
)
WrongNorm.add_fault(
    "rms-norm-centred",
    "the mean is subtracted in an RMS norm",
    "text slightly off, worse in deep models",
    rms_norm=lambda self, right, x, w, eps: normalise(
        centre(x), w, (centre(x) ** 2).mean(-1)[..., None], eps
    ),
)
WrongNorm.add_fault(
    "norm-without-weight",
    "the weight of a norm is not applied",
    "text is off from the first token",
    rms_norm=lambda self, right, x, w, eps: right(x, np.ones_like(w), eps),
)
WrongNorm.add_fault(
    "norm-one-added-twice",
    "1 is added to weights of Gemma's norms that contain it",
    "noise from the first token on",
    source="vLLM #31464, meganeura #188",
    shows_on="arch:gemma3",
    rms_norm=lambda self, right, x, w, eps: right(x, w + 1, eps),
)
WrongNorm.add_fault(
    "norm-by-sum",
    "the sum of squares is used in place of their mean",
    "everything a norm passes on is too small",
    rms_norm=lambda self, right, x, w, eps: normalise(x, w, square(x) * x.shape[-1], eps),
)
WrongNorm.add_fault(
    "weight-before-norm",
    "the weight is applied before the mean square is computed",
    "each row is off by a factor near one",
    rms_norm=lambda self, right, x, w, eps: right(x * w, np.ones_like(w), eps),
)
WrongNorm.add_fault(
    "squares-in-half",
    "the mean square is rounded to half precision",
    "rows off by up to 5e-4; infinite for large activations",
    rms_norm=lambda self, right, x, w, eps: normalise(
        x, w, square(x).astype(F16).astype(float), eps
    ),
)
WrongNorm.add_fault(
    "norm-in-half",
    "the result of a norm is rounded to half precision",
    "no effect that a reader sees",
    rms_norm=lambda self, right, x, w, eps: right(x, w, eps).astype(F16).astype(np.float32),
)
WrongNorm.add_fault(
    "norm-of-first-row",
    "all tokens of a batch are scaled by the first one's mean square",
    "prompts are read wrongly, single tokens correctly",
    rms_norm=lambda self, right, x, w, eps: normalise(x, w, square(x)[:1], eps),
)
WrongNorm.add_fault(
    "heads-normed-together",
    "the norm of queries and keys is over all heads together",
    "attention is sharper in some heads; text drifts",
    shows_on="arch:qwen3",
    site="Qcur_normed",
    rms_norm=lambda self, right, x, w, eps: (
        normalise(x, w, square(x).mean(axis=1, keepdims=True), eps)
        if x.ndim == 3
        else right(x, w, eps)
    ),
)


WrongNorm.add_fault(
    "head-norms-exchanged",
    "the norms of queries and keys have each other's weights",
    "text drifts",
    shows_on="arch:qwen3",
    site="Qcur_normed",
    graph_norm=lambda self, right, step, layer, site, x, name="": right(
        step, layer, site, x, OTHER_NORM.get(name, name)
    ),
)
WrongNorm.add_fault(
    "head-norms-missing",
    "queries and keys are not normed",
    "attention far too sharp or too flat",
    shows_on="arch:qwen3",
    site="Qcur_normed",
    rms_norm=lambda self, right, x, w, eps: x if x.ndim == 3 else right(x, w, eps),
)
WrongNorm.add_fault(
    "post-norm-missing",
    "Gemma's norm after attention is left out",
    "activations grow from layer to layer",
    shows_on="arch:gemma2",
    site="attn_post_norm",
    graph_norm=lambda self, right, step, layer, site, x, name="": (
        step.probe(site, layer, x)
        if name == "post_attention_norm"
        else right(step, layer, site, x, name)
    ),
)
WrongEps = WrongNorm.add_fault(
    "wrong-eps",
    "eps is 1e-6 instead of 1e-5, or the reverse",
    "no effect that a reader sees; small activations are off",
    first_of_all=True,
    rms_norm=lambda self, right, x, w, eps: right(x, w, 1e-6 if eps > 3e-6 else 1e-5),
)
WrongNorm.add_fault(
    "stale-norm",
    "the norm's result is not used; later ops read the old activations",
    "activations grow from layer to layer",
    first_of_all=True,
    rms_norm=lambda self, right, x, w, eps: x,
)
WrongNorm.add_fault(
    "layer-norm-uncentred",
    "the mean is not subtracted in a layer norm",
    "text is off from the first token",
    shows_on="arch:gpt2",
    layer_norm=lambda self, right, x, w, b, eps: self.loaded.ops.rms_norm(x, w, eps) + b,
)
WrongNorm.add_fault(
    "layer-norm-without-bias",
    "the bias of a layer norm is not added",
    "text is off from the first token",
    shows_on="arch:gpt2",
    layer_norm=lambda self, right, x, w, b, eps: right(x, w, np.zeros_like(b), eps),
)
WrongNorm.add_fault(
    "layer-norm-of-sample-variance",
    "the variance of a layer norm is divided by n - 1",
    "no effect that a reader sees: off by 1 / 2n",
    shows_on="arch:gpt2",
    layer_norm=lambda self, right, x, w, b, eps: (
        normalise(centre(x), w, (centre(x) ** 2).sum(-1)[..., None] / (x.shape[-1] - 1), eps) + b
    ),
)
WrongNorm.add_fault(
    "layer-norm-eps-outside",
    "eps is added to the deviation of a layer norm, not to the variance",
    "embeddings off in the sixth digit",
    shows_on="arch:bert",
    site="inp_norm",
    layer_norm=lambda self, right, x, w, b, eps: (
        normalise(centre(x), w, (np.sqrt(square(centre(x))) + eps) ** 2) + b
    ),
)
