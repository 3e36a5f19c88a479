"""Wrong samplers are distinguished by their lists. All lists of an honest sampler are right."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.registry import import_members
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.diagnosis.diagnosis import Diagnosed
from lockstep.harness.diagnosis.run import diagnose_one
from lockstep.harness.diagnosis.sampled import SampledLists, sampler_questions
from lockstep.harness.honest.samplers import HONEST_SAMPLERS
from lockstep.harness.mutants.parts.wrong_samplers import WRONG_SAMPLERS
from lockstep.harness.records import EXACT
from lockstep.harness.runs.run import builtin_model
from lockstep.harness.samplers.grammars import READING
from tests.places import EXAMPLES
from tests.plans import plan_of

import_members("lockstep.harness.mutants")
QUESTIONS = list(sampler_questions())


def questions_about(stage: str) -> list[SampledLists]:
    return [q for q in QUESTIONS if stage in [each["sampler"] for each in q.request.chain]]


@cache
def session_of(cls: type[Reference]) -> LocalSession:
    return LocalSession(cls, None, EXACT)


@cache
def answers_of(cls: type[Reference], stage: str) -> list[Any]:
    return [question.of(session_of(cls)) for question in questions_about(stage)]


def makes_the_same(subject: type[Reference], other: type[Reference], stage: str) -> bool:
    """Return True if, in each pair of lists, the two lists are equal or both right."""
    rows = zip(
        questions_about(stage), answers_of(subject, stage), answers_of(other, stage), strict=True
    )
    return all(q.compare(a, b, session_of(other), 0.0).same.all() for q, a, b in rows)


# questions have no vocabulary, so diagnosis does not ask for grammars
STAGES = sorted({cls.stage for cls in WRONG_SAMPLERS.values()} - {*READING})


@pytest.mark.parametrize("stage", STAGES)
def test_wrong_samplers_of_a_stage_are_distinguished(stage: str) -> None:
    classes = [cls for cls in WRONG_SAMPLERS.values() if cls.stage == stage]
    for cls in classes:
        assert not makes_the_same(cls, Reference, stage), cls.name
        named = [other.name for other in classes if makes_the_same(cls, other, stage)]
        assert named == [cls.name]


@pytest.mark.parametrize("name", HONEST_SAMPLERS)
def test_honest_sampler_gives_right_lists(name: str) -> None:
    for stage in ("top_k", "typical", "dist"):
        assert makes_the_same(HONEST_SAMPLERS[name], Reference, stage)


PENALTY = 'repeat = s["penalty_repeat"]'


@pytest.mark.parametrize(
    ("penalty", "named"),
    [(PENALTY, None), (f"{PENALTY} ** n", "mutant:penalty-per-occurrence")],
)
def test_mistake_of_a_program_is_named(penalty: str, named: str | None, tmp_path: Path) -> None:
    script = tmp_path / "sampler.py"
    right = (EXAMPLES / "sampler.py").read_text()
    script.write_text(right.replace(PENALTY, penalty))
    plan = plan_of(builtin_model("f32", tmp_path), f"{sys.executable} {script}")
    said: list[Any] = []
    diagnose_one(plan, said.append)
    (found,) = [each for each in said if isinstance(each, Diagnosed)]
    (samplers,) = found.of
    assert samplers.status == ("named" if named else "right")
    assert [match.engine for match in samplers.named] == ([named] if named else [])
