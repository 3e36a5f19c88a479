"""Schedules on which llama.cpp is known to differ still differ; a short run finds no other
differences."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from lockstep.harness.asking.environments import NotBuilt
from lockstep.harness.context.runner import Runner
from lockstep.harness.fuzzers.base import FuzzPlan, run_campaign
from lockstep.harness.fuzzers.batch.judge import Judge
from lockstep.harness.fuzzers.batch.known import KnownSchedule, entry_for, known_schedules
from lockstep.harness.records import EXACT
from lockstep.harness.synth.small import SMALL

KNOWN = known_schedules()
ROWS = [(known, kind) for known in KNOWN for kind in known.kinds]


JudgeOf = Callable[[str, str], Judge]


@pytest.fixture(scope="module")
def judge_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeOf]:
    """Provide a judge of an engine and our engine on the small model of a kind; sessions stay open
    for the next question."""
    folder, runner = tmp_path_factory.mktemp("small"), Runner()
    with ExitStack() as stack:

        @cache
        def judge(component: str, kind: str) -> Judge:
            path = folder / f"{kind}.gguf"
            SMALL[kind](path)
            sessions = [runner.open(name, path, EXACT) for name in (component, "reference")]
            return Judge(*(stack.enter_context(session) for session in sessions))

        yield judge


@pytest.mark.parametrize(("known", "kind"), ROWS, ids=lambda value: getattr(value, "id", value))
def test_known_schedule_still_differs(known: KnownSchedule, kind: str, judge_of: JudgeOf) -> None:
    try:
        judge = judge_of(known.component, kind)
    except NotBuilt as error:
        pytest.skip(f"not asked whether {known.id} still holds: {error}")
    found = judge(known.schedule)
    over = f"{known.component} no longer differs: take {known.id} out of harness/known"
    assert found is not None, over
    assert found.symptom == known.symptom, f"{known.id} now shows otherwise: {found}"
    assert entry_for(KNOWN, (known.component,), kind, found, known.schedule) == known


@pytest.mark.parametrize("kind", SMALL)
def test_short_run_finds_only_known_differences(kind: str, tmp_path: Path) -> None:
    plan = FuzzPlan(targets=(kind,), cases=40, start=1, seed=5)
    result = run_campaign("batch", plan, tmp_path, [])
    assert result.code == 0, [v.summary for v in result.verdicts]
    (summary,) = [v for v in result.verdicts if v.status == "agreed"]
    counts = summary.detail
    assert counts["schedules"] >= 40
    compared = ("ubatches", "logits", "neighbours", "splitting")
    assert min(counts[what] for what in compared) > 100
