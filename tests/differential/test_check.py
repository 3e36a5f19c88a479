"""Our engine and llama.cpp conform on every built-in model, a real model, and random clean
models."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.engine.batch import Batch
from lockstep.harness.check.check import Plan, suites_named
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.judging.compare import largest, worst_distance
from lockstep.harness.records import EXACT, PRESETS, Answered, Evaluation, Request, Settings
from lockstep.harness.selftest.clean_cases import try_clean
from lockstep.harness.synth.builtin import BUILTIN
from tests.differential.conftest import Checked

PlanFor = Callable[..., Plan]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", BUILTIN)
def test_built_in_model_conforms_in_every_suite(
    name: str, preset: str, models: Callable[[str], Path], plan_for: PlanFor, checked: Checked
) -> None:
    found = checked(plan_for(models(name), settings=PRESETS[preset]))
    assert [v.summary for v in found if v.status not in ("agreed", "excused")] == []
    assert {v.suite for v in found} == {suite.name for suite in suites_named(()) if suite.expected}
    assert exit_code(found) == 0


@pytest.mark.parametrize("preset", PRESETS)
def test_stories_conforms(preset: str, stories: Path, plan_for: PlanFor, checked: Checked) -> None:
    found = checked(plan_for(stories, settings=PRESETS[preset]))
    assert exit_code(found) == 0
    assert {v.status for v in found} <= {"agreed", "excused"}


def value(session: Session, question: str, *args: object, **kwargs: object) -> object:
    outcome = session.ask(question, *args, **kwargs)
    assert isinstance(outcome, Answered), outcome
    return outcome.value


def both(path: Path, settings: Settings, question: str, *args: object) -> list[object]:
    answers = []
    for engine in ("llama.cpp", "reference"):
        with Runner().open(engine, path, settings) as session:
            answers.append(value(session, question, *args))
    return answers


@pytest.mark.parametrize("seed", range(13))  # one seed for each architecture
def test_a_random_clean_case_raises_no_alarm(seed: int) -> None:
    tried = try_clean(seed)
    assert (tried.wrong, tried.untold) == ((), ())


def test_many_ubatches_make_no_difference(
    models: Callable[[str], Path], plan_for: PlanFor, checked: Checked
) -> None:
    """A plan uses a ubatch as long as the prompt; this test uses a short ubatch."""
    path, tokens = models("f32"), list(range(3, 40))
    narrow = replace(EXACT, n_ubatch=8)
    theirs, ours = both(path, narrow, "evaluate", Request(batches=(Batch.of(tokens),)))
    assert isinstance(theirs, Evaluation)
    assert isinstance(ours, Evaluation)
    assert worst_distance(theirs.logits[0], ours.logits[0]) <= 1e-5 * largest(theirs.logits[0])
