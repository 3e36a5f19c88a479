"""Mistakes in attention scores: their scale, soft cap, softmax and sinks, and sums over split
caches."""

from typing import Any

import numpy as np

from lockstep.engine.ops.reference import Bools
from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.parts.mistakes import Mistake, Op

NONSENSE = "text is nonsense from the second token on"
VAGUE = "text is fluent but off topic"
FORGETS = "what was said earlier is forgotten or mixed up"


class WrongAttention(Mistake):
    group = "attention"
    effect = VAGUE
    site = "kq_soft_max"


def share_of_width(engine: Mistake) -> float:
    hp = engine.loaded.graph.hparams
    return float((hp.n_embd // hp.n_head) ** -0.5)


# --- scale --------------------------------------------------------------------------------------


WrongAttention.add_fault(
    "attention-scale-squared",
    "scores are divided by d instead of its root",
    soft_max=lambda self, right, x, scale, visible: right(x, scale**2, visible),
)
WrongAttention.add_fault(
    "attention-scale-of-width",
    "scores are divided by the root of the model's width",
    soft_max=lambda self, right, x, scale, visible: right(
        x, self.loaded.graph.hparams.n_embd**-0.5, visible
    ),
)


WrongAttention.add_fault(
    "attention-scale-without-key-length",
    "scores are divided by the root of n_embd / n_head, whatever the length of keys",
    shows_on="q4_0",
    soft_max=lambda self, right, x, scale, visible: right(x, share_of_width(self), visible),
)
WrongAttention.add_fault(
    "attention-key-length-ignored-gemma2",
    "every gemma2 is scaled by n_embd / n_head, which is right only for the largest",
    source="candle #3917",
    shows_on="arch:gemma2",
    site="kq",
    scale=lambda self, right, x, factor: right(x, share_of_width(self) if x.ndim == 3 else factor),
)
WrongAttention.add_fault(
    "attention-key-length-ignored-gpt-oss",
    "the scale of gpt-oss assumes heads of width n_embd / n_head",
    source="candle #3917",
    shows_on="arch:gpt-oss",
    soft_max_with_sinks=lambda self, right, x, scale, *more: right(x, share_of_width(self), *more),
)
WrongAttention.add_fault(
    "attention-scaled-twice",
    "queries that are already scaled are scaled again with the scores",
    shows_on="arch:phi3",
    soft_max=lambda self, right, x, scale, visible: right(
        x, self.loaded.graph.hparams.n_embd_head**-0.5, visible
    ),
)
WrongAttention.add_fault(
    "attention-scale-missing-gpt2",
    "gpt2 does not divide scores by the root of the head's width",
    shows_on="arch:gpt2",
    soft_max=lambda self, right, x, scale, visible: right(x, 1.0, visible),
)


class MissingScale(WrongAttention, name="mutant:missing-scale"):
    mistake = "missing 1/sqrt(d)"
    effect = "attention looks only at one token; the text repeats"
    first_of_all = True

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        return right(x, 1.0, visible)

    def flash_attn(self, right: Op, q: F32, k: Any, v: Any, scale: float, *more: Any) -> F32:
        return right(q, k, v, 1.0, *more)


# --- scores -------------------------------------------------------------------------------------


class Capped(WrongAttention):
    shows_on = "arch:gemma2"
    site = "kq_scaled_2"


Capped.add_fault(
    "soft-cap-missing",
    "attn_logit_softcapping is not read, and scores are not capped",
    source="vLLM #30427",
    soft_cap=lambda self, right, x, cap: x if x.ndim == 3 else right(x, cap),
)
Capped.add_fault(
    "soft-cap-cut-off",
    "scores are cut off at the cap, not bent towards it",
    soft_cap=lambda self, right, x, cap: np.clip(x, -cap, cap) if x.ndim == 3 else right(x, cap),
)


Capped.add_fault(
    "soft-cap-of-logits",
    "scores are capped by the cap of the logits",
    soft_cap=lambda self, right, x, cap: right(
        x, self.loaded.graph.hparams.f_final_logit_softcapping if x.ndim == 3 else cap
    ),
)
Capped.add_fault(
    "soft-cap-before-scale",
    "scores are capped before they are scaled",
    site="kq",
    scale=lambda self, right, x, factor: x if x.ndim == 3 else right(x, factor),
    soft_max=lambda self, right, x, scale, visible: right(
        x, scale * self.loaded.graph.hparams.n_embd_head**-0.5, visible
    ),
)


class CapAfterMask(Capped, name="mutant:soft-cap-after-mask"):
    mistake = "hidden scores are set before scores are capped, so they become minus the cap"
    site = "kq_soft_max"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        hp: Any = self.loaded.graph.hparams
        seen = x if visible is None else np.where(visible, x, -hp.f_attn_logit_softcapping)
        return right(seen.astype(np.float32), scale, None)


WrongAttention.add_fault(
    "attention-scores-f16",
    "scores are rounded to F16 although F32 is requested",
    "small errors everywhere; long texts drift",
    site="kq",
    kq=lambda self, right, q, k: in_half(right(q, k)),
)
WrongAttention.add_fault(
    "attention-weights-cut-off",
    "attention weights are truncated to BF16, not rounded",
    "small errors everywhere; long texts drift",
    soft_max=lambda self, right, x, scale, visible: cut_off(right(x, scale, visible)),
)


def cut_off(x: F32) -> F32:
    """Keep the upper 16 bits of each float32 number."""
    return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


class NotDivided(WrongAttention, name="mutant:softmax-not-divided"):
    mistake = "a softmax is not divided by its sum"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        out = right(x, scale, visible)
        out /= out.max(axis=-1, keepdims=True)
        return out


class OneMore(WrongAttention, name="mutant:softmax-plus-one"):
    mistake = "one is added to the sum of a softmax"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        if visible is None:  # the softmax of a router
            return right(x, scale, visible)
        sinks = np.zeros(len(x), np.float32)
        return self.loaded.ops.soft_max_with_sinks(x, scale, visible, sinks)


class SplitsAveraged(WrongAttention, name="mutant:splits-averaged"):
    mistake = "two halves of the cells are attended to separately, and results averaged"
    effect = "the prompt is understood; long texts wander"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        assert visible is not None
        near = np.arange(x.shape[-1]) < x.shape[-1] // 2
        parts = [right(x, scale, visible & half) for half in (near, ~near)]
        n = sum(part.any(axis=-1, keepdims=True) for part in parts)
        out: F32 = (parts[0] + parts[1]) / np.maximum(n, 1).astype(np.float32)
        return out


class SplitNotRescaled(WrongAttention, name="mutant:splits-not-rescaled"):
    mistake = "parts of the cells are added up without rescaling to a common maximum"
    effect = "the prompt is understood; long texts wander"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        assert visible is not None
        s = np.where(visible, x * np.float32(scale), -np.inf)
        parts = np.array_split(s, 2, axis=-1) if s.shape[-1] > 1 else [s]
        tops = [np.maximum(part.max(axis=-1, keepdims=True), -1e30) for part in parts]
        powers = np.concatenate([np.exp(p - t) for p, t in zip(parts, tops, strict=True)], axis=-1)
        powers /= powers.sum(axis=-1, keepdims=True)
        return powers.astype(np.float32)


class LastCellsDropped(WrongAttention, name="mutant:attention-last-cells-dropped"):
    mistake = "cells after the last whole block of 16 are ignored"
    effect = "the newest tokens are ignored; the text stutters"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        if visible is None:  # the softmax of a router
            return right(x, scale, visible)
        whole = x.shape[-1] // 16 * 16 or x.shape[-1]
        return right(x, scale, visible & (np.arange(x.shape[-1]) < whole))


class SoftmaxNan(WrongAttention, name="mutant:softmax-nan"):
    """A softmax that processes the cells in blocks of 16."""

    mistake = "a softmax that gives NaN on a fully masked row"
    effect = "NaN logits for some prompt lengths"
    first_of_all = True

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        out = right(x, scale, visible)
        if visible is None:
            return out
        for start in range(0, x.shape[-1], 16):
            # the block's largest score is -inf, and -inf - -inf is NaN
            hidden = ~visible[:, start : start + 16].any(axis=-1)
            out[:, hidden] = np.nan
        return out


# --- sinks --------------------------------------------------------------------------------------


class Sinks(WrongAttention):
    shows_on = "arch:gpt-oss"

    def soft_max_with_sinks(
        self, right: Op, x: F32, scale: float, visible: Bools, sinks: F32
    ) -> F32:
        return right(x, scale, visible, self.wrong(sinks))

    def wrong(self, sinks: F32) -> F32:
        raise NotImplementedError


Sinks.add_fault(
    "sinks-ignored",
    "attn_sinks is not loaded",
    wrong=lambda self, sinks: np.full_like(sinks, -np.inf),
)
Sinks.add_fault(
    "sinks-of-other-heads",
    "heads have the sinks of other heads",
    wrong=lambda self, sinks: sinks[::-1].copy(),
)
Sinks.add_fault(
    "sinks-scaled",
    "sinks are scaled like scores",
    wrong=lambda self, sinks: sinks * np.float32(self.loaded.graph.hparams.n_embd_head**-0.5),
)
Sinks.add_fault(
    "sinks-added-to-scores",
    "a sink is added to the scores of its head, which changes nothing in a softmax",
    soft_max_with_sinks=lambda self, right, x, scale, visible, sinks: self.loaded.ops.soft_max(
        x + sinks[:, None, None], scale, visible
    ),
)


def in_half(x: F32) -> F32:
    return x.astype(np.float16).astype(np.float32)
