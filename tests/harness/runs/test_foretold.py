"""The estimated time of a check is printed once, for a slow engine, and never exceeds the real
time."""

from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.asking.waits import n_tokens
from lockstep.harness.check.check import Opened, open_plan, run_suites
from lockstep.harness.records import EXACT, Answered, Crashed, Outcome, Request
from lockstep.harness.runs.foretold import Foretold, still_to_come
from tests.harness.check.test_check import plan_for
from tests.models import builtin


class Counting(LocalSession):
    def _ask(
        self, question: str, args: tuple[Any, ...], kwargs: dict[str, Any], consume: Any = None
    ) -> Outcome:
        self.__dict__.setdefault("asked", []).append(n_tokens(question, args))
        return super()._ask(question, args, kwargs, consume)


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    found = open_plan(plan_for(builtin("f32", tmp_path), n_tokens=32), lambda _: None)
    yield found
    found.close()


def said_of(
    opened: Opened, outcome: Outcome, suites: tuple[str, ...] = (), times: int = 1
) -> list[str]:
    said: list[str] = []
    foretold = Foretold(context=opened.context, suites=suites, remark=said.append)
    for _ in range(times):
        foretold("evaluate", (Request(batches=opened.context.batches),), outcome)
    return said


def test_forecast_covers_only_certain_questions(opened: Opened) -> None:
    context = opened.context
    subject = Counting(Reference, context.model, EXACT)
    context.subject = subject
    found = list(run_suites(context, ("logits",)))
    assert [v.status for v in found] == ["agreed"]
    usual = sum(map(len, context.batches))
    assert sum(subject.__dict__["asked"]) == usual + still_to_come(context, "evaluate")


def test_slow_engine_gets_one_forecast_with_quicker_options(opened: Opened) -> None:
    left = still_to_come(opened.context, "evaluate")
    (text,) = said_of(opened, Answered(value=None, seconds=68.0), times=2)
    assert "reference took 68 s for 34 tokens" in text
    assert (
        f"asks this model for at least {left} more tokens, which take about {left / 30:.0f} minutes"
        in text
    )
    assert "--tokens 2 --steps 2" in text
    assert "lockstep synth" in text


def test_quick_engine_gets_no_forecast(opened: Opened) -> None:
    assert said_of(opened, Answered(value=None, seconds=0.1)) == []


def test_forecast_ignores_suites_that_do_not_run_and_missing_answers(
    opened: Opened,
) -> None:
    assert said_of(opened, Answered(value=None, seconds=68.0), suites=("trace",)) == []
    assert said_of(opened, Crashed(message="it died")) == []


def test_forecast_counts_each_beginning_from_its_start_for_token_engines(
    opened: Opened,
) -> None:
    assert still_to_come(opened.context, "greedy") == 32 * 33 // 2
