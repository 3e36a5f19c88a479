"""Every wrong sampler is found at its stage, and no honest sampler is accused."""

import re
from collections.abc import Iterator
from functools import cache

import pytest

from lockstep.engine.registry import import_members
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.honest.samplers import HONEST_SAMPLERS
from lockstep.harness.mutants.parts.wrong_samplers import WRONG_SAMPLERS
from lockstep.harness.records import EXACT, Answered
from lockstep.harness.samplers.asking import ask_every_stage
from lockstep.harness.samplers.cases import SampleCase, make_case
from lockstep.harness.samplers.grammars import READING
from lockstep.harness.samplers.judgement import Judgement, StageFinding, judge_answer
from lockstep.harness.suites.samplers import CASES, ROWS
from tests.fake_samplers import EndAlone

import_members("lockstep.harness.mutants")
ORDERS = ("mutant:temp-first", "mutant:temp-last")  # these change other stages of the chain too


@cache
def case_of(seed: int) -> SampleCase:
    return make_case(seed, ROWS)


def judge(cls: type[Reference], case: SampleCase) -> Judgement:
    outcome = LocalSession(cls, None, EXACT).ask("sample", case.request)
    assert isinstance(outcome, Answered), outcome
    return judge_answer(case.request, outcome.value)


def findings(cls: type[Reference], stage: str) -> Iterator[StageFinding]:
    for case in (case_of(seed) for seed in range(CASES)):
        if stage in case.samplers:
            yield from judge(cls, case).unexplained


@pytest.mark.parametrize("name", [n for n, c in WRONG_SAMPLERS.items() if c.stage not in READING])
def test_wrong_sampler_is_found_at_its_stage(name: str) -> None:
    cls = WRONG_SAMPLERS[name]
    first = next(findings(cls, cls.stage), None)
    assert first is not None
    assert first.sampler == cls.stage or name in ORDERS


@pytest.mark.parametrize("name", HONEST_SAMPLERS)
def test_honest_sampler_is_not_accused(name: str) -> None:
    for seed in range(20):
        found = judge(HONEST_SAMPLERS[name], case_of(seed))
        assert found.judged
        assert found.findings == ()


def test_wrong_samplers_are_many_and_each_has_its_mistake() -> None:
    assert len(WRONG_SAMPLERS) >= 40
    mistakes = {(cls.stage, cls.mistake) for cls in WRONG_SAMPLERS.values()}
    assert len(mistakes) == len(WRONG_SAMPLERS)
    threads = [cls.source for cls in WRONG_SAMPLERS.values() if cls.source]
    assert len(threads) >= 12
    assert all(re.fullmatch(r"[\w.\-]+ #\d+(, [\w.\-]+ #\d+)*", text) for text in threads)


def test_engine_that_shows_the_last_list_is_asked_for_each_prefix() -> None:
    session = LocalSession(EndAlone, None, EXACT)

    def ask(request):  # type: ignore[no-untyped-def]
        outcome = session.ask("sample", request)
        assert isinstance(outcome, Answered), outcome
        return outcome.value

    case = next(case_of(seed) for seed in range(CASES) if len(case_of(seed).samplers) > 3)
    assert ask(case.request).sizes.shape == (ROWS, 1)
    found = judge_answer(case.request, ask_every_stage(ask, case.request))
    assert found.judged + found.undefined == ROWS * len(case.samplers)
    assert found.findings == ()
