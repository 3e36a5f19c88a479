"""Questions that distinguish wrong samplers: many settings of each sampler, and some pairs of
samplers."""

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.adapters.parts.sampled_lists import SampledList, split_lists
from lockstep.harness.asking.session import LocalSession, Session
from lockstep.harness.diagnosis.compared import Compared
from lockstep.harness.diagnosis.questions import MistakeQuestion
from lockstep.harness.records import Answered, Outcome, SampleAnswer, SampleRequest
from lockstep.harness.samplers.asking import ask_every_stage
from lockstep.harness.samplers.cases import CHOOSING, CUTTING, CaseLimits, make_case, stage_for
from lockstep.harness.samplers.judgement import judge_answer

SETTINGS, ROWS = 16, 4  # settings of each sampler, and rows for each
LIMITS = CaseLimits(sizes=(9, 17, 40), kinds=("random", "peaked", "wide", "masked"))
NEAR = 1e-4  # share of a logit plus one; two mistakes never differ by less
PAIRS = (("top_p", "temp"), ("temp", "top_p"), ("min_p", "temp"), ("temp", "min_p"))
FIRST_SEED = 5_000_000  # first seed of cases that no other suite uses


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledLists(MistakeQuestion):
    """A question for the lists of a sampler chain on some rows. The lists of the subject and of a
    wrong engine count as the same if they are equal, or if both are right."""

    request: SampleRequest
    unit = "lists of samplers"
    aspect = "samplers"
    methods = ("sample",)

    def ask(self, session: Session) -> Outcome:
        """Return the answer with the list after every stage, or the first outcome that is not an
        answer."""
        broken: list[Outcome] = []

        def ask(request: SampleRequest) -> SampleAnswer:
            outcome = session.ask("sample", request)
            if not isinstance(outcome, Answered):
                broken.append(outcome)
                raise LookupError
            value: SampleAnswer = outcome.value
            return value

        began = perf_counter()
        try:
            value = ask_every_stage(ask, self.request)
            return Answered(value=value, seconds=perf_counter() - began)
        except LookupError:
            return broken[0]

    def compare(
        self, said: SampleAnswer, answer: SampleAnswer, session: LocalSession, noise: float
    ) -> Compared:
        pairs = zip(flatten(said), flatten(answer), strict=True)
        alike = np.array([is_alike(one, other) for one, other in pairs], np.bool_)
        if not alike.all():  # the judgement is slow, so it is made only if needed
            alike |= self.is_right(said) & self.is_right(answer)
        return Compared.exactly(alike.tolist())

    def repeats(self, said: SampleAnswer, again: SampleAnswer, noise: float) -> bool:
        return all(map(is_alike, flatten(said), flatten(again)))

    def is_right(self, answer: SampleAnswer) -> NDArray[np.bool_]:
        """Return True or False for each list. Known mistakes of llama.cpp count as right."""
        right = np.ones(answer.sizes.shape, np.bool_)
        for finding in judge_answer(self.request, answer).unexplained:
            right[finding.row, finding.stage] = False
        return right.reshape(-1)

    def stage_of(self, row: int) -> str:
        """Return the name of the sampler that produced a list."""
        stages = self.request.chain
        return str(stages[row % len(stages)]["sampler"])


def flatten(answer: SampleAnswer) -> list[SampledList]:
    return [each for row in split_lists(answer) for each in row]


def is_alike(one: SampledList, other: SampledList) -> bool:
    """Return True for the same candidates with nearly equal logits. If the order is the same, the
    selected token must be the same too."""
    a, b = (np.argsort(each.ids, kind="stable") for each in (one, other))
    if not np.array_equal(one.ids[a], other.ids[b]):
        return False
    x, y = one.logits[a].astype(np.float64), other.logits[b].astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = (
            (x == y)
            | (np.abs(x - y) <= NEAR * (1 + np.fmin(np.abs(x), np.abs(y))))
            | (np.isnan(x) & np.isnan(y))
        )
    same_order = np.array_equal(one.ids, other.ids)
    return bool(near.all()) and (one.selected == other.selected or not same_order)


def sampler_questions() -> Iterator[SampledLists]:
    for name in (*CUTTING, *CHOOSING):
        for i in range(SETTINGS):
            yield question_of(f"lists of {name} ({i + 1})", [name], i)
    for first, second in PAIRS:
        for i in range(SETTINGS // 4):
            yield question_of(f"lists of {first} and {second} ({i + 1})", [first, second], i)


def question_of(words: str, names: list[str], number: int) -> SampledLists:
    seed = FIRST_SEED + number
    rng = np.random.default_rng([seed, *"-".join(names).encode()])
    stages: list[dict[str, Any]] = [stage_for(name, rng, max(LIMITS.sizes)) for name in names]
    for stage in stages if len(stages) > 1 else ():
        stage |= {"t": 0.5} if stage["sampler"] == "temp" else {"p": 0.5}
    case = make_case(int(rng.integers(1 << 31)), ROWS, LIMITS, stages)
    return SampledLists(words=words, request=case.request)
