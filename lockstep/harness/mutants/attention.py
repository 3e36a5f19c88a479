"""Scores gone wrong: their scale, soft cap, softmax and sinks, and the sums of split caches."""

from typing import Any

import numpy as np

from lockstep.engine.ops.reference import Bools
from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.parts.mistakes import Mistake, Op

NONSENSE = "text is nonsense from the second token on"
VAGUE = "text is fluent and beside the point"
FORGETS = "what was said earlier is forgotten or mixed up"


class WrongAttention(Mistake):
    group = "attention"
    effect = VAGUE
    site = "kq_soft_max"


# --- scale --------------------------------------------------------------------------------------


class ScaleSquared(WrongAttention, name="mutant:attention-scale-squared"):
    mistake = "scores are divided by d instead of its root"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        return right(x, scale**2, visible)


class ScaleOfWidth(WrongAttention, name="mutant:attention-scale-of-width"):
    mistake = "scores are divided by the root of the model's width"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        return right(x, self.loaded.graph.hparams.n_embd**-0.5, visible)


class ScaleWithoutKeyLength(WrongAttention, name="mutant:attention-scale-without-key-length"):
    mistake = "scores are divided by the root of n_embd / n_head, whatever the length of keys"
    shows_on = "q4_0"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        hp = self.loaded.graph.hparams
        return right(x, (hp.n_embd // hp.n_head) ** -0.5, visible)


class KeyLengthIgnoredGemma2(WrongAttention, name="mutant:attention-key-length-ignored-gemma2"):
    mistake = "every size of gemma2 is scaled by n_embd / n_head, as the largest alone is"
    source = "candle #3917"
    shows_on = "arch:gemma2"
    site = "kq"

    def scale(self, right: Op, x: F32, factor: float) -> F32:
        hp = self.loaded.graph.hparams
        return right(x, (hp.n_embd // hp.n_head) ** -0.5 if x.ndim == 3 else factor)


class KeyLengthIgnoredGptOss(WrongAttention, name="mutant:attention-key-length-ignored-gpt-oss"):
    mistake = "of gpt-oss a head is taken for n_embd / n_head wide in the scale"
    source = "candle #3917"
    shows_on = "arch:gpt-oss"

    def soft_max_with_sinks(
        self, right: Op, x: F32, scale: float, visible: Bools, sinks: F32
    ) -> F32:
        hp = self.loaded.graph.hparams
        return right(x, (hp.n_embd // hp.n_head) ** -0.5, visible, sinks)


class ScaledTwicePhi3(WrongAttention, name="mutant:attention-scaled-twice"):
    mistake = "queries that are scaled already are scaled once more with the scores"
    shows_on = "arch:phi3"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        return right(x, self.loaded.graph.hparams.n_embd_head**-0.5, visible)


class ScaleMissingGpt2(WrongAttention, name="mutant:attention-scale-missing-gpt2"):
    mistake = "of gpt2 the root of the head's width is left out"
    shows_on = "arch:gpt2"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        return right(x, 1.0, visible)


# --- scores -------------------------------------------------------------------------------------


class Capped(WrongAttention):
    shows_on = "arch:gemma2"
    site = "kq_scaled_2"


class CapMissing(Capped, name="mutant:soft-cap-missing"):
    mistake = "attn_logit_softcapping is not read, and scores are not capped"
    source = "vLLM #30427"

    def soft_cap(self, right: Op, x: F32, cap: float) -> F32:
        return x if x.ndim == 3 else right(x, cap)


class CapCut(Capped, name="mutant:soft-cap-cut-off"):
    mistake = "scores are cut off at the cap, not bent towards it"

    def soft_cap(self, right: Op, x: F32, cap: float) -> F32:
        return np.clip(x, -cap, cap) if x.ndim == 3 else right(x, cap)


class CapOfLogits(Capped, name="mutant:soft-cap-of-logits"):
    mistake = "scores have the cap of the logits"

    def soft_cap(self, right: Op, x: F32, cap: float) -> F32:
        hp: Any = self.loaded.graph.hparams
        return right(x, hp.f_final_logit_softcapping if x.ndim == 3 else cap)


class CapBeforeScale(Capped, name="mutant:soft-cap-before-scale"):
    mistake = "scores are capped before they are scaled"
    site = "kq"

    def scale(self, right: Op, x: F32, factor: float) -> F32:
        return x if x.ndim == 3 else right(x, factor)

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        return right(x, scale * self.loaded.graph.hparams.n_embd_head**-0.5, visible)


class CapAfterMask(Capped, name="mutant:soft-cap-after-mask"):
    mistake = "hidden scores are set before scores are capped, and end at minus the cap"
    site = "kq_soft_max"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        hp: Any = self.loaded.graph.hparams
        seen = x if visible is None else np.where(visible, x, -hp.f_attn_logit_softcapping)
        return right(seen.astype(np.float32), scale, None)


class ScoresInHalf(WrongAttention, name="mutant:attention-scores-f16"):
    mistake = "scores are rounded to F16 where F32 is asked for"
    effect = "small errors everywhere; long texts drift"
    site = "kq"

    def kq(self, right: Op, q: F32, k: Any) -> F32:
        return in_half(right(q, k))


class WeightsInHalf(WrongAttention, name="mutant:attention-weights-f16"):
    mistake = "the weights of attention are rounded to F16 where F32 is asked for"
    effect = "small errors everywhere; long texts drift"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        return in_half(right(x, scale, visible))


class NotDivided(WrongAttention, name="mutant:softmax-not-divided"):
    mistake = "a softmax is not divided by its sum"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        out = right(x, scale, visible)
        out /= out.max(axis=-1, keepdims=True)
        return out


class OneMore(WrongAttention, name="mutant:softmax-plus-one"):
    mistake = "one is added to the sum of a softmax"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        if visible is None:  # a router's
            return right(x, scale, visible)
        sinks = np.zeros(len(x), np.float32)
        return self.loaded.ops.soft_max_with_sinks(x, scale, visible, sinks)


class SplitsAveraged(WrongAttention, name="mutant:splits-averaged"):
    mistake = "two halves of the cells are attended to apart, and both results averaged"
    effect = "the prompt is understood; long texts wander"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        assert visible is not None
        near = np.arange(x.shape[-1]) < x.shape[-1] // 2
        parts = [right(x, scale, visible & half) for half in (near, ~near)]
        n = sum(part.any(axis=-1, keepdims=True) for part in parts)
        out: F32 = (parts[0] + parts[1]) / np.maximum(n, 1).astype(np.float32)
        return out


class SplitNotRescaled(WrongAttention, name="mutant:splits-not-rescaled"):
    mistake = "parts of the cells are added up without going to one common maximum"
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
    mistake = "cells behind the last whole block of 16 are not looked at"
    effect = "the newest tokens are ignored; the text stutters"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        if visible is None:  # a router's
            return right(x, scale, visible)
        whole = x.shape[-1] // 16 * 16 or x.shape[-1]
        return right(x, scale, visible & (np.arange(x.shape[-1]) < whole))


# --- sinks --------------------------------------------------------------------------------------


class Sinks(WrongAttention):
    shows_on = "arch:gpt-oss"

    def soft_max_with_sinks(
        self, right: Op, x: F32, scale: float, visible: Bools, sinks: F32
    ) -> F32:
        return right(x, scale, visible, self.wrong(sinks))

    def wrong(self, sinks: F32) -> F32:
        raise NotImplementedError


class SinksIgnored(Sinks, name="mutant:sinks-ignored"):
    mistake = "attn_sinks is not loaded"

    def wrong(self, sinks: F32) -> F32:
        return np.full_like(sinks, -np.inf)


class SinksOfOthers(Sinks, name="mutant:sinks-of-other-heads"):
    mistake = "heads have the sinks of heads in another order"

    def wrong(self, sinks: F32) -> F32:
        return sinks[::-1].copy()


class SinksScaled(Sinks, name="mutant:sinks-scaled"):
    mistake = "sinks are scaled as scores are"

    def wrong(self, sinks: F32) -> F32:
        return sinks * np.float32(self.loaded.graph.hparams.n_embd_head**-0.5)


class SinksAdded(Sinks, name="mutant:sinks-added-to-scores"):
    mistake = "a sink is added to the scores of its head, which changes nothing in a softmax"

    def soft_max_with_sinks(
        self, right: Op, x: F32, scale: float, visible: Bools, sinks: F32
    ) -> F32:
        return self.loaded.ops.soft_max(x + sinks[:, None, None], scale, visible)


def in_half(x: F32) -> F32:
    return x.astype(np.float16).astype(np.float32)
