"""Logits after each stage, with the limits for an honest engine.

Limits are multiples of a rounding, 2^-24 of the rounded value. They are doubled, because our values
are rounded too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.samplers.adaptive_p import PEAK, SHARPNESS, WIDTH, AdaptiveP
from lockstep.engine.samplers.base import Sampler
from lockstep.engine.samplers.dist import Dist
from lockstep.engine.samplers.dry import Dry
from lockstep.engine.samplers.grammar import Grammar
from lockstep.engine.samplers.grammar_lazy import GrammarLazy
from lockstep.engine.samplers.grammar_lazy_patterns import GrammarLazyPatterns
from lockstep.engine.samplers.infill import Infill
from lockstep.engine.samplers.logit_bias import LogitBias
from lockstep.engine.samplers.mirostat import Mirostat
from lockstep.engine.samplers.mirostat_v2 import MirostatV2
from lockstep.engine.samplers.parts.candidates import CandidateList, F
from lockstep.engine.samplers.penalties import Penalties
from lockstep.engine.samplers.temp import Temp
from lockstep.engine.samplers.temp_ext import TempExt
from lockstep.engine.samplers.top_n_sigma import TopNSigma
from lockstep.engine.samplers.top_p import TopP
from lockstep.engine.samplers.typical import Typical
from lockstep.engine.samplers.xtc import Xtc
from lockstep.harness.samplers.probabilities import (
    F64,
    LAST_PLACE,
    UNIT,
    probabilities_of,
    running_total,
)

SMALLEST = 2.0**-148  # two steps of the smallest float32


@dataclass(frozen=True, kw_only=True)
class LogitLimits:
    """The bounds of the logits of each candidate."""

    ids: NDArray[np.int32]
    logits: F64
    radius: F64
    other: F64 | None = None  # logits that are equally right


def logit_limits(
    sampler: Sampler, before: CandidateList, expected: CandidateList, learnt_off: float
) -> LogitLimits | None:
    """Return the limits for the logits after a sampler; None for a sampler without limits.

    `learnt_off` is the error of the sampler's learnt state.
    """
    if isinstance(sampler, Infill):
        return None
    change = CHANGES.get(type(sampler))
    if isinstance(sampler, AdaptiveP):
        change = partial(adapt, learnt_off=learnt_off)
    if change is None:
        same = before.logits.astype(np.float64)
        return LogitLimits(ids=before.ids, logits=same, radius=np.zeros(len(same)))
    order = np.argsort(before.ids, kind="stable")
    places = order[np.searchsorted(before.ids, expected.ids, sorter=order)]
    radius, other = change(sampler, before, expected, places)
    finite = np.where(np.isfinite(radius), radius, np.inf)
    return LogitLimits(
        ids=expected.ids,
        logits=expected.logits.astype(np.float64),
        radius=2 * finite + SMALLEST,
        other=other,
    )


def shows_p(sampler: Sampler, before: CandidateList) -> bool:
    """Return True if the stage itself computes probabilities of its list."""
    match sampler:
        case TopP() | Typical():
            return bool(F(sampler.p) < 1)
        case Xtc():
            off = sampler.is_off or len(before) < 2
            return bool(not off and F(sampler.source.clone().single()) <= F(sampler.p))
        case TempExt():
            return bool(F(sampler.delta) > 0) and len(before) > 1
        case Dist() | Mirostat() | MirostatV2() | AdaptiveP():
            return True
    return False


Found = tuple[F64, F64 | None]


def wide(values: NDArray[Any]) -> F64:
    return values.astype(np.float64)


def temp(sampler: Temp, c: CandidateList, e: CandidateList, places: NDArray[Any]) -> Found:
    """Return limits that allow both a division and a product with a rounded reciprocal. At
    temperature 0 any of several equal candidates may remain."""
    return divide(float(F(sampler.t)), c, e, 0.0)


def divide(t: float, c: CandidateList, e: CandidateList, off: float) -> Found:
    """Return limits for a division by t. `off` is the relative error of t."""
    if t > 0:
        return np.abs(wide(e.logits)) * (2 * UNIT + off), None
    best = c.logits.max()
    equal = np.count_nonzero(c.logits == best) > 1
    source = dict(zip(c.ids.tolist(), c.logits.tolist(), strict=True))
    same = np.array([source[token] for token in e.ids.tolist()], np.float64)
    other = np.where(same == best, np.where(np.isinf(e.logits), same, -np.inf), wide(e.logits))
    return np.zeros(len(e)), other if equal else None


def temp_ext(sampler: TempExt, c: CandidateList, e: CandidateList, places: NDArray[Any]) -> Found:
    """Return limits that include the error of the entropy, which is an error of the temperature and
    so of each logit."""
    if F(sampler.delta) <= 0:
        return divide(float(F(sampler.t)), c, e, 0.0)
    if len(c) <= 1:
        return np.zeros(len(e)), None
    held = probabilities_of(c.logits)
    there = held.p > 0
    p, radius = held.p[there], held.radius[there]
    log = np.abs(np.log(p))
    terms = p * log
    off = float((radius * (1 + log) + terms * (LAST_PLACE + 2 * UNIT)).sum())
    off += UNIT * running_total(terms)
    most = np.log(len(c))
    share, share_off = terms.sum() / most, off / most + 4 * UNIT
    low = max(0.0, float(F(sampler.t) - F(sampler.delta)))
    high = float(F(sampler.t) + F(sampler.delta))
    exponent = float(F(sampler.exponent))
    ends = [max(0.0, share + s * share_off) ** exponent * (high - low) for s in (-1, 1)]
    t = low + (high - low) * max(0.0, share) ** exponent
    spread = abs(ends[1] - ends[0]) + UNIT * (8 * high + 4 * abs(sampler.delta))
    return np.abs(wide(e.logits)) * (2 * UNIT + spread / max(t - spread, SMALLEST)), None


def penalties(
    sampler: Penalties, c: CandidateList, e: CandidateList, places: NDArray[Any]
) -> Found:
    counts = {token: sampler.tokens.count(token) for token in {*sampler.tokens}}
    n = np.array([counts.get(token, 0) for token in e.ids.tolist()], np.float64)
    size = n * abs(sampler.penalty_freq) + abs(sampler.penalty_present)
    before = np.abs(wide(c.logits[places]))
    scaled = before * max(abs(sampler.penalty_repeat), 1 / max(abs(sampler.penalty_repeat), 1e-9))
    radius = UNIT * (2 * scaled + 3 * size + np.abs(wide(e.logits)))
    return np.where((n > 0) & np.isfinite(radius), radius, 0.0), None


def dry(sampler: Dry, c: CandidateList, e: CandidateList, places: NDArray[Any]) -> Found:
    """Return limits for a power. Engines may compute the power as a product, with as many factors
    as the exponent."""
    change = np.abs(wide(e.logits) - wide(c.logits[places]))
    factors = 6 + len(sampler.tokens)
    radius = UNIT * (factors * change + 2 * np.abs(wide(e.logits)))
    return np.where(change > 0, radius, 0.0), None


def bias(sampler: LogitBias, c: CandidateList, e: CandidateList, places: NDArray[Any]) -> Found:
    sizes = {token: 0.0 for token, _ in sampler.biases}
    for token, number in sampler.biases:
        sizes[token] += abs(number)
    added = np.array([sizes.get(token, 0.0) for token in e.ids.tolist()])
    radius = UNIT * len(sampler.biases) * (np.abs(wide(c.logits[places])) + added)
    return np.where((added > 0) & np.isfinite(radius), radius, 0.0), None


def top_n_sigma(
    sampler: TopNSigma, c: CandidateList, e: CandidateList, places: NDArray[Any]
) -> Found:
    """Return limits. Candidates near the threshold may be kept or not."""
    before = wide(c.logits[places])
    valid = before[np.isfinite(before)]
    if F(sampler.n) <= 0 or len(c) <= 1 or not len(valid):
        return np.zeros(len(e)), None
    n, sigma = float(F(sampler.n)), float(valid.std())
    mean_off = UNIT * (running_total(np.abs(valid)) / len(valid) + abs(float(valid.mean())))
    off = n * (sigma * UNIT * (len(valid) / 2 + 6) + mean_off) + 2 * UNIT * n * sigma
    least = float(valid.max()) - n * sigma
    off += UNIT * (2 * abs(least) + float(np.abs(valid).max()))
    near = np.abs(before - least) <= off
    either = np.where(np.isinf(e.logits), before, -np.inf)
    return np.zeros(len(e)), np.where(near, either, wide(e.logits))


def adapt(
    sampler: AdaptiveP,
    c: CandidateList,
    e: CandidateList,
    places: NDArray[Any],
    learnt_off: float,
) -> Found:
    """Return limits from the slope of 5 - 10 d^2 / (1 + d), where d = |p - target| / 0.3. The slope
    is at most 10."""
    if F(sampler.target) < 0:
        return np.zeros(len(e)), None
    held = probabilities_of(c.logits)
    far = (held.p[places] + 1) * float(WIDTH)
    off = (held.radius[places] + learnt_off + 4 * UNIT) * float(WIDTH) + 3 * UNIT * far
    radius = float(SHARPNESS) * off + 4 * UNIT * (np.abs(wide(e.logits)) + float(PEAK))
    return np.where(np.isfinite(radius), radius, 0.0), None


def forbid(sampler: Grammar, c: CandidateList, e: CandidateList, places: NDArray[Any]) -> Found:
    """Return limits that allow minus infinity for a forbidden token, and the earlier logit for a
    permitted token. A control token that is allowed by its spelling may have either value."""
    if sampler.is_open:
        return np.zeros(len(e)), None
    spelled = sampler.find_spelled()[e.ids]
    return np.zeros(len(e)), np.where(spelled, -np.inf, wide(e.logits))


CHANGES: dict[type[Sampler], Callable[..., Found]] = {
    **dict.fromkeys((Grammar, GrammarLazy, GrammarLazyPatterns), forbid),
    Temp: temp,
    TempExt: temp_ext,
    Penalties: penalties,
    Dry: dry,
    LogitBias: bias,
    TopNSigma: top_n_sigma,
}
