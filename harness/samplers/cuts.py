"""The criteria by which samplers cut the list, and the number of candidates that each sampler may
keep."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.samplers.base import Sampler
from lockstep.engine.samplers.grammar import Grammar
from lockstep.engine.samplers.grammar_lazy import GrammarLazy
from lockstep.engine.samplers.grammar_lazy_patterns import GrammarLazyPatterns
from lockstep.engine.samplers.min_p import MinP
from lockstep.engine.samplers.mirostat import Mirostat
from lockstep.engine.samplers.mirostat_v2 import MirostatV2
from lockstep.engine.samplers.parts.candidates import CandidateList, F
from lockstep.engine.samplers.parts.libstdcxx import INT_END
from lockstep.engine.samplers.top_k import TopK
from lockstep.engine.samplers.top_p import TopP
from lockstep.engine.samplers.typical import Typical
from lockstep.engine.samplers.xtc import Xtc
from lockstep.harness.samplers.probabilities import (
    F64,
    LAST_PLACE,
    LEAST_P,
    UNIT,
    probabilities_of,
    running_total,
)

Kept = NDArray[np.bool_]
Sizes = Callable[[Kept], tuple[int, int]]
FARTHEST = 1e4  # nats from the mean surprise: every positive float64 is more likely than this


@dataclass(frozen=True, kw_only=True)
class RankedCut:
    """A ranking of the candidates, of which a sampler keeps the highest, and the smallest and the
    largest number of candidates that it may keep."""

    score: F64  # (candidates,)
    radius: F64  # (candidates,)
    sizes: Sizes
    lowest: bool = False  # True: the candidates with the lowest scores are kept


def cut_for(sampler: Sampler, before: CandidateList, learnt_off: float) -> RankedCut | None:
    """Return how the sampler cuts the list. Return None if the sampler does not cut, or if its
    result is compared directly."""
    if type(sampler) in LEARNT:
        return LEARNT[type(sampler)](sampler, before, learnt_off)
    make = CUTS.get(type(sampler))
    return None if make is None else make(sampler, before)


def size_between(low: int, high: int) -> Sizes:
    return lambda _: (low, high)


def by_logits(before: CandidateList, sizes: Sizes, *, lowest: bool = False) -> RankedCut:
    score = before.logits.astype(np.float64)
    return RankedCut(score=score, radius=np.zeros(len(score)), sizes=sizes, lowest=lowest)


def cut_top_k(sampler: TopK, c: CandidateList) -> RankedCut:
    """Allow the sampler to keep any number of the candidates that are equal to the k-th, because
    transformers keeps all of them."""
    n = len(c) if sampler.k <= 0 else min(sampler.k, len(c))
    last = np.sort(c.logits)[-n]
    return by_logits(c, size_between(n, int(np.count_nonzero(c.logits >= last))))


def reaches(p: F64, radius: float, goal: float, min_keep: int, slack: Kept | None) -> Sizes:
    """Return a function that gives the allowed sizes of a set whose sum just reaches a goal.
    `slack` are the candidates of which any may be the last of the set. If these are equal, the
    sampler may keep all of them, as transformers does."""

    def sizes(kept: Kept) -> tuple[int, int]:
        n = int(np.count_nonzero(kept))
        least = min(max(1, min_keep), len(p))
        total = float(p[kept].sum())
        without = total - float(p[kept].min() if n else 0.0)
        if slack is not None:
            without = total - float(p[kept & slack].sum())
        too_few = n < least or (n < len(p) and total < goal - radius)
        too_many = n > least and without > goal + radius
        return n + 1 if too_few else 0, n - 1 if too_many else len(p)

    return sizes


def cut_top_p(sampler: TopP, c: CandidateList) -> RankedCut:
    if F(sampler.p) >= 1:
        return by_logits(c, size_between(len(c), len(c)))
    held = probabilities_of(c.logits)
    goal, radius = float(F(sampler.p)), 2 * held.sum_radius
    return by_logits(c, reaches(held.p, radius, goal, sampler.min_keep, None))


def cut_min_p(sampler: MinP, c: CandidateList) -> RankedCut:
    n = len(c)
    if F(sampler.p) <= 0:
        return by_logits(c, size_between(n, n))
    wide = c.logits.astype(np.float64)
    log = float(np.log(np.float64(F(sampler.p))))
    least = float(wide.max()) + log
    radius = UNIT * (6 + 4 * abs(log) + 2 * np.log(n) + 3 * abs(least)) + LAST_PLACE * abs(log)
    keep = max(1, min(sampler.min_keep, n))
    low, high = (max(int(np.count_nonzero(wide >= least + e)), keep) for e in (radius, -radius))
    return by_logits(c, size_between(low, high))


def cut_typical(sampler: Typical, c: CandidateList) -> RankedCut:
    if F(sampler.p) >= 1:
        return by_logits(c, size_between(len(c), len(c)))
    held = probabilities_of(c.logits)
    there = held.p > 0
    surprise = np.where(there, -np.log(np.where(there, held.p, 1.0)), np.inf)
    relative = held.radius / np.where(there, held.p, 1.0)
    terms = np.where(there, held.p * np.where(there, surprise, 0.0), 0.0)
    entropy = float(terms.sum())
    off = relative + (LAST_PLACE + UNIT) * np.where(there, surprise, 0.0)
    of_entropy = float((held.p * off + terms * (relative + UNIT)).sum()) + UNIT * running_total(
        terms
    )
    score, radius = -np.abs(surprise - entropy), off + of_entropy + UNIT * np.abs(off)
    radius = radius + 2 * UNIT * np.where(np.isfinite(score), np.abs(score), 0.0)
    # such p are not precise in float32, and their surprise may be infinite
    too_small = held.p < LEAST_P
    score, radius = np.where(too_small, -FARTHEST, score), np.where(too_small, np.inf, radius)

    def sizes(kept: Kept) -> tuple[int, int]:
        least = (score + radius)[kept].min() if kept.any() else 0.0
        last = score - radius <= least
        inside = reaches(held.p, 2 * held.sum_radius, float(F(sampler.p)), sampler.min_keep, last)
        return inside(kept)

    return RankedCut(score=score, radius=radius, sizes=sizes)


def cut_xtc(sampler: Xtc, c: CandidateList) -> RankedCut:
    """Keep the lowest candidate that reaches the threshold, and all candidates below it."""
    n = len(c)
    if sampler.is_off or n < 2 or F(sampler.source.clone().single()) > F(sampler.p):
        return by_logits(c, size_between(n, n), lowest=True)
    held = probabilities_of(c.logits)
    threshold = float(F(sampler.t))
    most, fewest = (
        n - max(int(np.count_nonzero(held.p + e >= threshold)) - 1, 0)
        for e in (-held.radius, held.radius)
    )
    low, high = (each if each >= sampler.min_keep else n for each in (fewest, most))
    return by_logits(c, size_between(min(low, high), max(low, high)), lowest=True)


def cut_mirostat_v2(sampler: MirostatV2, c: CandidateList, off_mu: float) -> RankedCut:
    held = probabilities_of(c.logits)
    surprise = -np.log2(held.p)
    relative = np.where(held.p > 0, held.radius / held.p, 0.0) / np.log(2)
    finite = np.where(np.isfinite(surprise), surprise, 0.0)
    radius = relative + LAST_PLACE * finite + off_mu + UNIT * abs(float(sampler.mu))
    low, high = (
        max(int(np.count_nonzero(surprise + e <= float(sampler.mu))), 1) for e in (radius, -radius)
    )
    return by_logits(c, size_between(low, high))


def cut_mirostat(sampler: Mirostat, c: CandidateList, off_mu: float) -> RankedCut:
    """Allow an engine to drop probabilities that are too small for float32."""
    held = probabilities_of(c.logits)
    order = np.argsort(-held.p, kind="stable")
    p, radius = held.p[order], held.radius[order]
    most = len(p) if sampler.m < 1 else min(sampler.m, len(p))
    shown = [int(np.count_nonzero(p[:most] > least)) for least in (LEAST_P, 0.0)]
    # mu was learned from an impossible token
    if shown[0] < 2 or not np.isfinite(float(sampler.mu) + off_mu):
        return by_logits(c, size_between(1, len(c)))
    sizes = [
        size
        for n in range(shown[0], shown[1] + 1)
        for size in zipf_sizes(sampler, p[:n], float((radius[:n] / p[:n]).max()), off_mu)
    ]
    low, high = (min(max(int(min(k, INT_END)), 1), len(c)) for k in (min(sizes), max(sizes)))
    return by_logits(c, size_between(low, high))


def zipf_sizes(sampler: Mirostat, p: F64, relative: float, off_mu: float) -> list[float]:
    """Return the extreme values of k. `p` are the sorted probabilities from which k is estimated.

    The exponent s of Zipf's law has the error of its sums of products. mu has the error of the
    learnt state. The formula for k adds its own roundings.
    """
    i = np.arange(len(p) - 1)
    t, b = np.log((i + 2) / (i + 1)), np.log(p[:-1] / p[1:])
    up, down = float((t * b).sum()), float((t * t).sum())
    off = t * (2 * relative + 4 * UNIT + LAST_PLACE * np.abs(b)) + 4 * UNIT * np.abs(t * b)
    radius = (float(off.sum()) + UNIT * running_total(np.abs(t * b))) / down
    radius += up / down * UNIT * (len(p) + 5)
    found = []
    for s in (up / down - radius, up / down, up / down + radius):
        for mu in (float(sampler.mu) - off_mu, float(sampler.mu) + off_mu):
            k, share = zipf_size(sampler.n_vocab, s, mu)
            found += [k * (1 - share), k * (1 + share)]
    return found


def zipf_size(n_vocab: int, s: float, mu: float) -> tuple[float, float]:
    """Return k = (eps * 2^mu / (1 - N^-eps)) ^ (1 / s), where eps = s - 1, and its relative error.

    The error of N^-eps is one unit in the last place plus eps * ln N roundings. Subtraction from 1
    enlarges this relative error. The power divides the relative error of its base by s. A rounding
    error of 1 / s is multiplied by the logarithm of the base.
    """
    eps = s - 1
    if s <= 0:  # flat logits: a power of infinity, which is undefined if its base may be 1
        log = mu * float(np.log(2)) - float(np.log(max(n_vocab - 1, 1)))
        may_be_one = abs(log) <= LAST_PLACE + UNIT * (4 + abs(mu))
        return (INT_END, 1.0) if may_be_one else (INT_END if log > 0 else 1.0, 0.0)
    if eps == 0:
        return float(2.0**mu / np.log(n_vocab)), np.inf
    power = float(n_vocab) ** -eps
    log = np.log(abs(eps)) + mu * np.log(2) - np.log(abs(1 - power))
    of_power = LAST_PLACE + abs(eps) * np.log(n_vocab) * UNIT
    of_base = 4 * UNIT + LAST_PLACE + power * of_power / abs(1 - power)
    share = (of_base + 2 * UNIT * abs(log)) / s + LAST_PLACE
    return float(np.exp(min(log / s, 700.0))), float(min(share, 1.0))


def cut_grammar(sampler: Grammar, c: CandidateList) -> RankedCut:
    """Allow an engine to drop a candidate at minus infinity, which is never drawn. It may also drop
    a control token that is allowed by its spelling, because for many engines a control token has no
    text."""
    n = len(c)
    if sampler.is_open:
        return by_logits(c, size_between(n, n))
    must = sampler.find_allowed() & ~sampler.find_spelled()
    kept = must[c.ids] & (c.logits > -np.inf)
    sizes = size_between(int(np.count_nonzero(kept)), n)
    return RankedCut(score=kept.astype(np.float64), radius=np.zeros(n), sizes=sizes)


CUTS: dict[type[Sampler], Callable[..., RankedCut]] = {
    **dict.fromkeys((Grammar, GrammarLazy, GrammarLazyPatterns), cut_grammar),
    TopK: cut_top_k,
    TopP: cut_top_p,
    MinP: cut_min_p,
    Typical: cut_typical,
    Xtc: cut_xtc,
}
LEARNT: dict[type[Sampler], Callable[..., RankedCut]] = {  # cuts that depend on earlier choices
    Mirostat: cut_mirostat,
    MirostatV2: cut_mirostat_v2,
}
