"""Judges an engine's answer to a question about samplers, row by row and stage by stage."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from lockstep.engine.samplers.base import DrawingSampler, Sampler, SamplerVocabulary
from lockstep.engine.samplers.parts.candidates import CandidateList
from lockstep.engine.samplers.parts.chain import make_chain
from lockstep.engine.samplers.parts.draws import GivenDraws
from lockstep.engine.samplers.parts.ways import LLAMA_CPP, Accident
from lockstep.harness.adapters.parts.sampled_lists import SampledList, split_lists
from lockstep.harness.records import SampleAnswer, SampleRequest
from lockstep.harness.samplers.learned import LEARNING, learn_error
from lockstep.harness.samplers.legal import StageDifference, judge_stage

EVERY = frozenset(Accident)


@dataclass(frozen=True, kw_only=True)
class StageFinding:
    """An answer of a stage that no right sampler gives."""

    row: int
    stage: int
    sampler: str
    difference: StageDifference
    accident: Accident | None = None  # the accident of llama.cpp that the engine reproduces exactly


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The result of judging all lists of an answer."""

    judged: int
    undefined: int  # number of lists without a finite candidate, for which nothing is defined
    findings: tuple[StageFinding, ...]

    @property
    def unexplained(self) -> tuple[StageFinding, ...]:
        return tuple(each for each in self.findings if each.accident is None)


def judge_answer(
    request: SampleRequest, answer: SampleAnswer, words: SamplerVocabulary | None = None
) -> Judgement:
    """Judge an answer with the lists of every stage. Each stage is judged on the engine's own list
    before it."""
    n_vocab = request.logits.shape[1]
    chain = make_chain(request.chain, n_vocab, words)
    judges = [StageJudge(sampler) for sampler in chain.samplers]
    findings: list[StageFinding] = []
    judged = undefined = 0
    for row, lists in enumerate(split_lists(answer)):
        before = CandidateList.of_logits(request.logits[row])
        for stage, (judge, shown) in enumerate(zip(judges, lists, strict=True)):
            judge.prepare(request.accepted[row], float(request.draws[row, stage]))
            found = judge.judge(before, shown)
            judged, undefined = judged + judge.is_defined, undefined + (not judge.is_defined)
            if found is not None:
                findings.append(
                    StageFinding(
                        row=row,
                        stage=stage,
                        sampler=judge.sampler.name,
                        difference=found,
                        accident=judge.accident,
                    )
                )
            before = as_candidates(shown)
    return Judgement(judged=judged, undefined=undefined, findings=tuple(findings))


class StageJudge:
    """Judges one stage from row to row. It keeps our definition of the sampler in the state of the
    engine. It also keeps a copy of llama.cpp's sampler, because earlier mistakes of llama.cpp may
    have led to another state."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.mirror = sampler.clone()
        self.mirror.ways = LLAMA_CPP
        self.accident: Accident | None = None  # the last accident
        self.is_defined = True  # False: the result for this row is undefined
        self.off = 0.0  # limit of the difference between the state of an honest engine and ours
        # True: the state contains what it learned from an undefined row
        self.has_lost_state = False

    def prepare(self, accepted: Sequence[int], draw: float) -> None:
        for each in (self.sampler, self.mirror):
            for token in accepted:
                each.accept(token)
            if isinstance(each, DrawingSampler):
                each.source = GivenDraws(draw)

    def judge(self, before: CandidateList, shown: SampledList) -> StageDifference | None:
        after, found, mirror = as_candidates(shown), None, self.mirror.clone()
        self.has_lost_state |= not is_defined(before) and isinstance(self.sampler, LEARNING)
        self.is_defined = is_defined(before) and not self.has_lost_state
        if self.is_defined:
            found = judge_stage(self.sampler, before.change(sorted=False), after, self.off)
        with np.errstate(all="ignore"):
            mirrored = self.mirror.apply(before) if len(before) else before
        if found is not None:
            is_mirrored = self.accident is not None and is_same(mirrored, shown)
            accident = find_accident(mirror, before, shown)
            self.accident = accident or (self.accident if is_mirrored else None)
        if after.selected >= 0 and np.isin(after.token, before.ids):
            with np.errstate(all="ignore"):
                self.sampler.follow(before.change(sorted=False), after.change(sorted=False))
                if self.is_defined:
                    self.off += learn_error(self.sampler, before, after)
        return found


def as_candidates(shown: SampledList) -> CandidateList:
    at = np.flatnonzero(shown.ids == shown.selected)
    return CandidateList(
        ids=shown.ids,
        logits=shown.logits,
        p=shown.p,
        sorted=bool(shown.sorted),
        selected=int(at[0]) if len(at) else -1,
    )


def is_defined(c: CandidateList) -> bool:
    return bool(len(c)) and bool(np.isfinite(c.logits.max()))


# --- accidents of llama.cpp -----------------------------------------------------------------------


def find_accident(sampler: Sampler, before: CandidateList, shown: SampledList) -> Accident | None:
    """Return the mistake of llama.cpp that causes this answer; None if llama.cpp would answer
    differently."""
    says = (False, True) if shown.sorted is None else (before.sorted,)
    for claim in says:
        start = before.change(sorted=claim)
        if is_same(run_mirror(sampler, start, EVERY), shown):
            return next(needed_accidents(sampler, start, shown), None)
    return None


def needed_accidents(
    sampler: Sampler, start: CandidateList, shown: SampledList
) -> Iterator[Accident]:
    """Yield mistakes without which llama.cpp would answer differently: first single mistakes, then
    pairs in which either mistake alone causes the answer."""
    for n in (1, 2):
        for left_out in combinations(Accident, n):
            if not is_same(run_mirror(sampler, start, EVERY - {*left_out}), shown):
                yield left_out[0]


def run_mirror(
    sampler: Sampler, before: CandidateList, accidents: frozenset[Accident]
) -> CandidateList:
    if Accident.STALE_SORTED not in accidents:
        before = before.change(sorted=before.sorted and is_descending(before.logits))
    mirror = sampler.clone()
    mirror.ways = replace(LLAMA_CPP, accidents=accidents)
    with np.errstate(all="ignore"):
        return mirror.apply(before)


def is_same(found: CandidateList, shown: SampledList) -> bool:
    """Return True if the lists agree bit for bit. Of p only the NaN values are compared."""
    p = np.isnan(shown.p)
    return (
        np.array_equal(found.ids, shown.ids)
        and np.array_equal(found.logits, shown.logits, equal_nan=True)
        and (bool(p.all()) or np.array_equal(np.isnan(found.p), p))
        and (found.selected < 0 or found.token == shown.selected)
    )


def is_descending(logits: np.ndarray) -> bool:
    return bool((logits[1:] <= logits[:-1]).all())


def count_mirror_differences(
    request: SampleRequest, answer: SampleAnswer, words: SamplerVocabulary | None = None
) -> dict[str, int]:
    """Count the lists that are not equal to llama.cpp's bit for bit, for each property. Our copy of
    llama.cpp's samplers computes llama.cpp's lists."""
    chain = make_chain(request.chain, request.logits.shape[1], words, LLAMA_CPP)
    found = dict.fromkeys(("ids", "logits", "p", "selected", "sorted"), 0)
    for row, lists in enumerate(split_lists(answer)):
        for token in request.accepted[row]:
            chain.accept(token)
        ours = chain.apply(CandidateList.of_logits(request.logits[row]))
        for name, differs in compare_lists(ours, lists):
            found[name] += differs
    return found


def compare_lists(
    ours: Sequence[CandidateList], theirs: Sequence[SampledList]
) -> Iterator[tuple[str, bool]]:
    for a, b in zip(ours, theirs, strict=True):
        yield "ids", not np.array_equal(a.ids, b.ids)
        yield "logits", not same_bits(a.logits, b.logits)
        yield "p", not same_bits(a.p, b.p)
        yield "selected", a.token != b.selected
        yield "sorted", a.sorted is not b.sorted


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Compare bits. All NaN values count as equal."""
    one, other = (np.where(np.isnan(x), np.float32(np.nan), x).view(np.int32) for x in (a, b))
    return np.array_equal(one, other)
