"""Mistakes at the end of a graph: the last norm, the output matrix, the soft cap, the choice of the
row."""

import numpy as np

from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.mutants.parts.mistakes import Mistake, Op

HEADS = ("output.weight", "token_embd.weight")


def log_probabilities(logits: F32) -> F32:
    wide = logits.astype(np.float64)
    found: F32 = (wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))).astype(np.float32)
    return found


class WrongOutput(Mistake):
    group = "output"
    site = "result_output"
    layer = None


class LastNorm(WrongOutput):
    """A wrong last norm. `last` replaces the last norm of a run."""

    site = "result_norm"
    calls = 0

    def rms_norm(self, right: Op, x: F32, weight: F32, eps: float) -> F32:
        self.calls += 1
        normed = right(x, weight, eps)
        is_last = self.calls % (1 + 2 * self.loaded.graph.hparams.n_layer) == 0
        return self.last(x, normed) if is_last else normed

    def last(self, x: F32, normed: F32) -> F32:
        raise NotImplementedError


LastNorm.add_fault(
    "last-norm-missing",
    "the norm before the head is left out",
    "logits too large or too small; greedy text nearly right",
    last=lambda self, x, normed: x,
)
LastNorm.add_fault(
    "last-norm-of-prompts-only",
    "the code for single tokens lacks the last norm",
    "only the first token is right",
    last=lambda self, x, normed: normed if len(x) > 1 else x,
)
LastNorm.add_fault(
    "last-norm-twice",
    "the last norm is applied twice",
    "greedy text nearly right",
    last=lambda self, x, normed: normed / np.sqrt((normed**2).mean(axis=-1, keepdims=True)),
)
WrongOutput.add_fault(
    "last-norm-of-a-layer",
    "the last norm uses the weight of the last layer's norm",
    "text is worse",
    site="result_norm",
    taken=lambda self, read, name: read(
        "blk.1.ffn_norm.weight" if name == "output_norm.weight" else name
    ),
)
WrongOutput.add_fault(
    "head-always-tied",
    "the table of embeddings is the head, although the file has another head",
    "noise from the first token on",
    source="1bit-MONSTER #319",
    graph_head=lambda self, right: self.loaded.graph.tensors["token_embd.weight"],
)


class Head(WrongOutput):
    """A wrong head. `logits` changes the logits."""

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        out = right(x, weight)
        return self.logits(out) if weight.name in HEADS else out

    def logits(self, right: F32) -> F32:
        raise NotImplementedError


Head.add_fault(
    "logits-of-the-row-before",
    "each token of a batch gets the logits of the previous token",
    "the first token of an answer is a token of the prompt",
    logits=lambda self, right: np.roll(right, 1, axis=0),
)
Head.add_fault(
    "logits-of-last-row-only",
    "all tokens of a batch get the logits of the last token",
    "text is right, but probabilities of prompts are not",
    logits=lambda self, right: np.broadcast_to(right[-1:], right.shape).copy(),
)


class LastColumnLost(Head, name="mutant:last-logit-lost"):
    mistake = "the last token of the vocabulary has no logit"
    effect = "no effect until that token is due"

    def logits(self, right: F32) -> F32:
        right[:, -1] = 0
        return right


Head.add_fault(
    "logits-in-half",
    "logits are rounded to half precision",
    "ties of tokens that are about equally likely",
    logits=lambda self, right: right.astype(np.float16).astype(np.float32),
)
Head.add_fault(
    "logits-in-bf16",
    "logits are cut off to BF16",
    "ties of tokens that are about equally likely",
    logits=lambda self, right: (right.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32),
)
Head.add_fault(
    "log-probabilities-for-logits",
    "logarithms of probabilities are given as logits",
    "text is right, but programs that scale logits get wrong results",
    logits=lambda self, right: log_probabilities(right),
)
Head.add_fault(
    "logits-warm",
    "logits are divided by a temperature of 0.8 that nobody set",
    "greedy text is right; sampled text is too sure of itself",
    logits=lambda self, right: right / np.float32(0.8),
)
WrongOutput.add_fault(
    "logit-cap-missing",
    "Gemma 2's cap of the logits is left out",
    "greedy text is right; probabilities are not",
    shows_on="arch:gemma2",
    soft_cap=lambda self, right, x, cap: x if cap == 3 else right(x, cap),
)
WrongOutput.add_fault(
    "logit-cap-clips",
    "logits are clipped at the cap",
    "the likeliest tokens have equal logits",
    shows_on="arch:gemma2",
    soft_cap=lambda self, right, x, cap: (
        np.clip(x, -cap, cap).astype(np.float32) if cap == 3 else right(x, cap)
    ),
)
WrongOutput.add_fault(
    "logit-cap-of-scores",
    "logits are capped by the cap of attention's scores",
    "greedy text is right; probabilities are not",
    shows_on="arch:gemma2",
    soft_cap=lambda self, right, x, cap: right(x, 5.0),
)
WrongOutput.add_fault(
    "logit-cap-not-multiplied",
    "the hyperbolic tangent is not multiplied by the cap again",
    "greedy text is right; sampled text is noise",
    shows_on="arch:gemma2",
    soft_cap=lambda self, right, x, cap: (
        np.tanh(x / np.float32(cap)) if cap == 3 else right(x, cap)
    ),
)
