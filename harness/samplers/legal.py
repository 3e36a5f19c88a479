"""All differences that are allowed between two right samplers.

- Any order of the list. A draw uses the order of the engine's own list.
- Any choice among candidates that are equal for a cut.
- A cut at another place, if the threshold lies within the error bound of a candidate's probability.
- A candidate at minus infinity may be present or absent, because it is never drawn. The same is
  true for a control token that a grammar allows only by its spelling.
- Logits and probabilities within their bounds. Probabilities may differ by a factor for the whole
  list.

Each stage is judged on the engine's own list before the stage, so a mistake is found only at the
stage that makes it. Bounds: `probabilities`, `limits`.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.samplers.base import DrawingSampler, Sampler
from lockstep.engine.samplers.infill import Infill
from lockstep.engine.samplers.parts.candidates import CandidateList, F
from lockstep.harness.samplers.cuts import RankedCut, cut_for
from lockstep.harness.samplers.limits import logit_limits, shows_p
from lockstep.harness.samplers.probabilities import F64, UNIT, probabilities_of


class Wrong(Enum):
    """The kind of fault in the list after a stage."""

    FOREIGN = "a candidate that was not in the list before the stage"
    DROPPED = "too few candidates"
    KEPT = "too many candidates"
    RANK = "a less likely candidate was kept before a likelier one"
    LOGIT = "another logit"
    P = "another probability"
    CHOICE = "another token was selected"
    NO_CHOICE = "no token was selected"


@dataclass(frozen=True, kw_only=True)
class StageDifference:
    """The first value that no right sampler gives."""

    wrong: Wrong
    token: int = -1
    expected: float = 0.0
    actual: float = 0.0
    allowed: float = 0.0


def judge_stage(
    sampler: Sampler, before: CandidateList, after: CandidateList, learnt_off: float = 0.0
) -> StageDifference | None:
    """Return the fault of a stage; None if the stage is right.

    `sampler` is our definition in the engine's state, and `learnt_off` is the error bound of its
    learnt state.
    """
    with np.errstate(all="ignore"):
        expected = sampler.clone().apply(before)
        stage = JudgedStage(
            sampler=sampler,
            before=before,
            expected=expected,
            after=show_impossible(expected, after),
            off=learnt_off,
        )
        for check in (check_members, check_kept, check_logits, check_p, check_choice):
            if (found := check(stage)) is not None:
                return found
    return None


@dataclass(frozen=True, kw_only=True)
class JudgedStage:
    """A stage with its input, our result, and the engine's result."""

    sampler: Sampler
    before: CandidateList
    expected: CandidateList
    after: CandidateList
    off: float


def show_impossible(expected: CandidateList, after: CandidateList) -> CandidateList:
    """Return the engine's list, with as many candidates at minus infinity as our list has. Which
    candidates these are does not matter."""
    gone = np.flatnonzero((expected.logits == -np.inf) & ~np.isin(expected.ids, after.ids))
    both = (np.count_nonzero(each.logits == -np.inf) for each in (expected, after))
    gone = gone[: max(next(both) - next(both), 0)]
    if not len(gone):
        return after
    no_p = F(np.nan if np.isnan(after.p).all() else 0)
    return after.change(
        ids=np.concatenate([after.ids, expected.ids[gone]]),
        logits=np.concatenate([after.logits, expected.logits[gone]]),
        p=np.concatenate([after.p, np.full(len(gone), no_p)]),
        sorted=False,
    )


def check_members(stage: JudgedStage) -> StageDifference | None:
    known = np.union1d(stage.before.ids, stage.expected.ids)
    strange = np.setdiff1d(stage.after.ids, known)
    if len(strange):
        return StageDifference(wrong=Wrong.FOREIGN, token=int(strange[0]))
    return None


def check_kept(stage: JudgedStage) -> StageDifference | None:
    before, after = stage.before, stage.after
    cut = cut_for(stage.sampler, before, stage.off)
    kept = np.isin(before.ids, after.ids)
    if cut is None:  # the sampler keeps all candidates, or chooses them regardless of rank
        return compare_ids(stage.expected.ids, after.ids)
    if kept.any() and not kept.all():
        if cut.lowest:
            kept = ~kept  # then the removed candidates are checked in the same way
        found = check_rank(cut, kept, before)
        if found is not None:
            return found
        kept = np.isin(before.ids, after.ids)
    return check_size(cut, kept, before)


def compare_ids(expected: NDArray[np.int32], actual: NDArray[np.int32]) -> StageDifference | None:
    for wrong, of in (
        (Wrong.DROPPED, np.setdiff1d(expected, actual)),
        (Wrong.KEPT, np.setdiff1d(actual, expected)),
    ):
        if len(of):
            counts = {"expected": float(len(expected)), "actual": float(len(actual))}
            return StageDifference(wrong=wrong, token=int(of[0]), **counts)
    return None


def check_rank(
    cut: RankedCut, kept: NDArray[np.bool_], before: CandidateList
) -> StageDifference | None:
    score, radius = cut.score, cut.radius
    least = float((score + radius)[kept].min())
    ahead = np.flatnonzero(~kept & (score - radius > least))
    if not len(ahead):
        return None
    worst = int(ahead[np.argmax(score[ahead])])
    return StageDifference(
        wrong=Wrong.RANK,
        token=int(before.ids[worst]),
        expected=float(score[worst]),
        actual=least,
        allowed=float(radius[worst]),
    )


def check_size(
    cut: RankedCut, kept: NDArray[np.bool_], before: CandidateList
) -> StageDifference | None:
    low, high = cut.sizes(kept)
    n = int(np.count_nonzero(kept))
    if low <= n <= high:
        return None
    wrong, bound = (Wrong.DROPPED, low) if n < low else (Wrong.KEPT, high)
    edge = np.flatnonzero(~kept if n < low else kept)
    ranked = edge[np.argsort(cut.score[edge], kind="stable")]
    at = (ranked[-1] if (n < low) is not cut.lowest else ranked[0]) if len(ranked) else -1
    token = int(before.ids[at]) if at >= 0 else -1
    return StageDifference(wrong=wrong, token=token, expected=float(bound), actual=float(n))


def check_logits(stage: JudgedStage) -> StageDifference | None:
    after = stage.after
    limits = logit_limits(stage.sampler, stage.before, stage.expected, stage.off)
    if limits is None:
        return None
    places = places_of(after.ids, limits.ids)
    want, allow = limits.logits[places], limits.radius[places]
    other = None if limits.other is None else limits.other[places]
    right = is_near(after.logits, want, allow)
    if other is not None:
        right |= is_near(after.logits, other, allow)
    return first_wrong(Wrong.LOGIT, right, after, want, after.logits, allow)


def is_near(actual: NDArray[np.float32], wanted: F64, allowed: F64) -> NDArray[np.bool_]:
    off = np.abs(actual.astype(np.float64) - wanted)
    same = (actual == wanted) | (np.isnan(actual) & np.isnan(wanted))
    return np.asarray(same | (off <= allowed), np.bool_)


def first_wrong(
    wrong: Wrong,
    right: NDArray[np.bool_],
    after: CandidateList,
    expected: F64,
    actual: NDArray[np.float32],
    allowed: F64,
) -> StageDifference | None:
    if right.all():
        return None
    off = np.where(right, -1.0, np.abs(actual.astype(np.float64) - expected))
    at = int(np.argmax(np.where(np.isnan(off), np.inf, off)))
    return StageDifference(
        wrong=wrong,
        token=int(after.ids[at]),
        expected=float(expected[at]),
        actual=float(actual[at]),
        allowed=float(allowed[at]),
    )


def places_of(ids: NDArray[np.int32], source: NDArray[np.int32]) -> NDArray[np.int64]:
    order = np.argsort(source, kind="stable")
    return order[np.searchsorted(source, ids, sorter=order)]


def check_p(stage: JudgedStage) -> StageDifference | None:
    """Compare the probabilities p. A list need not be normalised. NaN means that p is undefined,
    and is not compared."""
    after = stage.after
    if np.isnan(after.p).all() or not len(after):
        return None
    if isinstance(stage.sampler, Infill):
        return check_merged_p(stage.before, stage.expected, after)
    if not shows_p(stage.sampler, stage.before):
        return None
    held = probabilities_of(after.logits)
    total = float(after.p.astype(np.float64).sum())
    share = np.asarray(after.p / np.float64(total), np.float64)
    allow = 2 * (held.radius + held.p * (held.sum_radius + UNIT))
    right = is_near(share.astype(np.float32), held.p, allow + UNIT * held.p)
    return first_wrong(Wrong.P, right, after, held.p, share.astype(np.float32), allow)


def check_merged_p(
    before: CandidateList, expected: CandidateList, after: CandidateList
) -> StageDifference | None:
    """Compare p after infill, which merges candidates. Each sum has the errors of its terms."""
    held = probabilities_of(before.logits)
    want = expected.p[places_of(after.ids, expected.ids)].astype(np.float64)
    share = after.p / np.float64(after.p.astype(np.float64).sum())
    want = want / want.sum()
    allow = 4 * held.sum_radius * (1 + want) / max(float(expected.p.max()), UNIT)
    right = is_near(share.astype(np.float32), want, allow)
    return first_wrong(Wrong.P, right, after, want, share.astype(np.float32), allow)


def check_choice(stage: JudgedStage) -> StageDifference | None:
    sampler, after = stage.sampler, stage.after
    if stage.expected.selected < 0:
        return None
    if after.selected < 0:
        return StageDifference(wrong=Wrong.NO_CHOICE)
    if not isinstance(sampler, DrawingSampler):
        best = float(after.logits.max())
        chosen = float(after.logits[after.selected])
        if chosen == best:
            return None
        return StageDifference(wrong=Wrong.CHOICE, token=after.token, expected=best, actual=chosen)
    held = probabilities_of(after.logits)
    sums = np.cumsum(held.p)
    draw, allowed = sampler.source.clone().double(), 2 * held.sum_radius
    low, high = float(sums[after.selected] - held.p[after.selected]), float(sums[after.selected])
    if low - allowed <= draw <= high + allowed or len(after) == 1:
        return None
    return StageDifference(
        wrong=Wrong.CHOICE,
        token=after.token,
        expected=draw,
        actual=low if draw < low else high,
        allowed=allowed,
    )
