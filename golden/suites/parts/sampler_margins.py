"""Distances of a stage's decisions from other decisions, such as one candidate more."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.ops.functions import exp, log
from lockstep.engine.samplers.base import Sampler
from lockstep.engine.samplers.greedy import GreedySampler
from lockstep.engine.samplers.infill import LEAST, Infill
from lockstep.engine.samplers.min_p import MinP
from lockstep.engine.samplers.mirostat import Mirostat
from lockstep.engine.samplers.mirostat_v2 import MirostatV2
from lockstep.engine.samplers.parts.candidates import CandidateList
from lockstep.engine.samplers.temp import Temp
from lockstep.engine.samplers.top_k import TopK
from lockstep.engine.samplers.top_n_sigma import TopNSigma
from lockstep.engine.samplers.top_p import TopP
from lockstep.engine.samplers.typical import Typical
from lockstep.engine.samplers.xtc import Xtc

F64 = NDArray[np.float64]
FREE = float("inf")
LN_2 = float(log(2.0))


def least(values: Any) -> float:
    """Return the smallest magnitude, or infinity if there are no values."""
    values = np.abs(np.asarray(values, np.float64))
    return float(values.min()) if values.size else FREE


def softmax(logits: Any) -> F64:
    wide = np.asarray(logits, np.float64)
    weights = exp(wide - wide.max())
    return np.asarray(weights / weights.sum())


def gap_behind(logits: F64, n: int) -> float:
    """Return the gap between the logits of the last of n kept candidates and of the first removed
    one."""
    falling = np.sort(logits)[::-1]
    return float(falling[n - 1] - falling[n]) if 0 < n < len(falling) else FREE


def finite(c: CandidateList) -> F64:
    wide = c.logits.astype(np.float64)
    return wide[np.isfinite(wide)]


def greedy(sampler: Sampler, before: CandidateList, after: CandidateList) -> float:
    return gap_behind(finite(before), 1)


def temp(sampler: Temp, before: CandidateList, after: CandidateList) -> float:
    return FREE if sampler.t > 0 else gap_behind(finite(before), 1)


def top_k(sampler: TopK, before: CandidateList, after: CandidateList) -> float:
    return gap_behind(finite(before), sampler.k) if sampler.k > 0 else FREE


def top_p(sampler: TopP, before: CandidateList, after: CandidateList) -> float:
    if sampler.p >= 1:
        return FREE
    p = np.sort(softmax(before.logits))[::-1]
    return min(least(np.cumsum(p)[:-1] - sampler.p), gap_behind(finite(before), len(after)))


def min_p(sampler: MinP, before: CandidateList, after: CandidateList) -> float:
    if sampler.p <= 0:
        return FREE
    logits = np.sort(finite(before))[::-1]
    threshold = float(logits[0] + log(sampler.p))
    return min(least(logits[1:] - threshold), gap_behind(logits, len(after)))


def typical(sampler: Typical, before: CandidateList, after: CandidateList) -> float:
    if sampler.p >= 1 or len(before) < 2:
        return FREE
    p = softmax(finite(before))
    far = np.abs(-log(p) + float((p * log(p)).sum()))
    order = np.argsort(far, kind="stable")
    gaps = np.diff(far[order])[: len(after)]
    return min(least(np.cumsum(p[order])[:-1] - sampler.p), least(gaps))


def xtc(sampler: Xtc, before: CandidateList, after: CandidateList) -> float:
    draw = sampler.draw
    if draw is None or sampler.p <= 0:
        return FREE
    p = np.sort(softmax(before.logits))[::-1]
    reaching = int(np.count_nonzero(p >= sampler.t))
    behind = gap_behind(finite(before), reaching - 1) if reaching > 1 else FREE
    by_draw = draw - sampler.p if sampler.p < 1 else FREE
    return min(least(p - sampler.t), least(by_draw), behind)


def top_n_sigma(sampler: TopNSigma, before: CandidateList, after: CandidateList) -> float:
    logits = finite(before)
    if sampler.n <= 0 or len(logits) < 2:
        return FREE
    return least(logits - (logits.max() - sampler.n * logits.std()))


def mirostat(sampler: Mirostat, before: CandidateList, after: CandidateList) -> float:
    """Return how far the stage's number of candidates, before it is rounded, is from the next
    number."""
    p = np.asarray(np.sort(softmax(before.logits))[::-1], np.float32)
    if len(p) < 3 or not (p > 0).all():
        return FREE if len(p) < 2 else 0.0
    k = float(sampler.estimate(p))
    if not np.isfinite(k):
        return 0.0
    apart = least(k - round(k)) / max(k, 1.0) if 0.9 < k < len(p) + 1 else FREE
    return min(apart, gap_behind(finite(before), len(after)))


def mirostat_v2(sampler: MirostatV2, before: CandidateList, after: CandidateList) -> float:
    p = np.sort(softmax(finite(before)))[::-1]
    over = least((-log(p) / LN_2 - float(sampler.mu))[1:])
    return min(over, gap_behind(finite(before), len(after)))


def infill(sampler: Infill, before: CandidateList, after: CandidateList) -> float:
    c = sampler.ways.softmax(before, sort=True)
    c = c.take(np.flatnonzero(np.isfinite(c.logits)))
    ends = sampler.find_ends(c)
    p = c.p.astype(np.float64)
    pieces = [sampler.known.pieces[token] for token in c.ids.tolist()]
    pairs = [
        (i, j) for i, j in combinations(range(len(c)), 2) if is_beginning(pieces[i], pieces[j])
    ]
    rest = 3 * p[ends].sum() * len(before) - p[~ends].sum()
    decided = [rest, *(p[i] - p[j] for i, j in pairs)]
    merged = sampler.merge(c).p.astype(np.float64)
    words = int(np.count_nonzero((merged >= LEAST) & ~ends))
    if rest < 0:
        decided += [*(merged[~ends & (merged > 0)] - float(LEAST))]
    if rest < 0 < words:
        kept = merged[(merged >= LEAST) | ends]
        decided += [*(kept / kept.sum() - 1 / (words + 1))]
    return least(decided)


def is_beginning(a: bytes, b: bytes) -> bool:
    return a.startswith(b) or b.startswith(a)


MARGINS: dict[type[Sampler], Callable[..., float]] = {
    GreedySampler: greedy,
    Temp: temp,
    TopK: top_k,
    TopP: top_p,
    MinP: min_p,
    Typical: typical,
    Xtc: xtc,
    TopNSigma: top_n_sigma,
    Mirostat: mirostat,
    MirostatV2: mirostat_v2,
    Infill: infill,
}


def margin_of(sampler: Sampler, before: CandidateList, after: CandidateList) -> float:
    """Return the margin of the stage's decision. sampler: its state before the stage."""
    margin = MARGINS.get(type(sampler))
    with np.errstate(all="ignore"):
        return FREE if margin is None else margin(sampler, before, after)


def walk(p: F64, order: Sequence[int] | NDArray[Any], draw: float) -> tuple[int, float]:
    """Return the candidate at which the running sum reaches the draw, and the margin of this
    choice."""
    sums = np.cumsum(p[order])
    at = int(np.searchsorted(sums, draw)) if len(p) > 1 else 0
    clear = min(least(sums[:-1] - draw), 1 - draw) if len(p) > 1 else FREE
    return int(order[min(at, len(p) - 1)]), clear
