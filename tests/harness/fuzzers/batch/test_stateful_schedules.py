"""Stateful schedules without llama.cpp: wrong memories are caught, and Hypothesis shrinks the
schedules."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis.stateful import run_state_machine_as_test

from lockstep.harness.adapters.base import Adapter
from lockstep.harness.context.runner import Runner
from lockstep.harness.fuzzers.batch.judge import Judge
from lockstep.harness.records import EXACT
from lockstep.harness.synth.small import SMALL
from tests.schedule_machine import Parted, examples, machine_for
from tests.wrong_memories import WRONG, Wrong

EXAMPLES = 600
CAUGHT = ("drops-last", "reuses-live-cell", "forgets-to-shift", "window-without-oneself-blind")
OpenJudge = Callable[[str, str], Judge]


@pytest.fixture
def judge_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenJudge]:
    """Return a judge that compares our engine with another engine on the small model of a kind."""
    with ExitStack() as stack:

        def judge(kind: str, subject: str) -> Judge:
            path = tmp_path / f"{kind}.gguf"
            SMALL[kind](path)
            sessions = [Runner().open(name, path, EXACT) for name in ("reference", subject)]
            return Judge(*map(stack.enter_context, sessions), relations=False)

        for row in WRONG.values():
            monkeypatch.setitem(Adapter.family, row.engine.name, row.engine)
        yield judge


@pytest.mark.parametrize("name", CAUGHT)
def test_a_wrong_memory_is_caught_and_its_schedule_shrunk(name: str, judge_of: OpenJudge) -> None:
    row: Wrong = WRONG[name]
    machine = machine_for(row.kind, judge_of(row.kind, name), fills=False)
    with pytest.raises(Parted) as found:
        run_state_machine_as_test(machine, settings=examples(EXAMPLES, steps=5))
    case = found.value.case
    tokens = sum(len(step[1]) for step in case.steps if step[0] == "decode")
    assert len(case.steps) <= row.steps + 2, case  # the first and the last batch are never removed
    assert tokens <= row.tokens + 4, case


@pytest.mark.parametrize("kind", SMALL)
def test_our_engine_agrees_with_itself(kind: str, judge_of: OpenJudge) -> None:
    judge = judge_of(kind, "reference")
    run_state_machine_as_test(machine_for(kind, judge, fills=False), settings=examples(5))
    assert judge.counts["steps"] > 10
