"""An oracle that dies in the middle of a check costs one verdict, not the check."""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.engine.batch import Batch
from lockstep.harness.check.check import Plan, run_suites, suites_named
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import EXACT, Answered, Crashed, Request
from tests.differential.conftest import OpenPlan
from tests.harness.context.test_runner import comes_true, is_running


class Assassin:
    """A listener that stops the worker process at one line of progress, then kills it. A stopped
    worker cannot answer, so the current question never gets an answer."""

    def __init__(self, session: Session, line: str) -> None:
        self.session, self.line = session, line
        self.victims: list[int] = []

    def __call__(self, text: str) -> None:
        pid = self.session.pid
        if text == self.line and pid is not None and not self.victims:
            self.victims.append(pid)
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(1.0, os.kill, (pid, signal.SIGKILL)).start()


@pytest.mark.parametrize("victim", ["logits", "decode", "trace"])
def test_killed_oracle_costs_one_verdict_and_other_suites_complete(
    victim: str, models: Callable[[str], Path], plan_for: Callable[..., Plan], open_for: OpenPlan
) -> None:
    line = {
        "logits": "logits of both engines",
        "decode": "generating 8 tokens",
        "trace": "recording the graph",
    }[victim]
    with open_for(plan_for(models("f32"))) as opened:
        oracle = opened.context.oracle
        assassin = Assassin(oracle, line)
        found = list(run_suites(replace(opened.context, progress=assassin), ()))
        assert len(assassin.victims) == 1
        assert isinstance(oracle.ask("describe"), Answered)
        assert oracle.pid not in (None, *assassin.victims)
    wrong = [v for v in found if v.status != "agreed"]
    assert [(v.suite, v.status) for v in wrong] == [(victim, "crashed")]
    assert "llama.cpp crashed" in wrong[0].summary
    assert "SIGKILL" in wrong[0].summary
    assert {v.suite for v in found} == {s.name for s in suites_named(()) if s.expected}
    assert exit_code(found) == 3


def test_worker_death_between_two_questions_changes_no_verdict(
    models: Callable[[str], Path], plan_for: Callable[..., Plan], open_for: OpenPlan
) -> None:
    with open_for(plan_for(models("f32"))) as opened:
        oracle = opened.context.oracle
        first = oracle.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert comes_true(lambda: not is_running(first))  # dead, but not yet reaped
        found = list(run_suites(opened.context, ("logits",)))
        assert oracle.pid not in (None, first)
    assert exit_code(found) == 0


def test_context_beyond_memory_accuses_neither_engine(
    models: Callable[[str], Path],
) -> None:
    """The memory limit is that of our worker; llama.cpp itself does not refuse the model."""
    vast = replace(EXACT, n_ctx=1 << 20, n_ubatch=1 << 20)
    with Runner(time_limit=120).open("llama.cpp", models("f32"), vast) as session:
        outcome = session.ask("evaluate", Request(batches=(Batch.of([1, 2]),)))
    assert isinstance(outcome, Crashed), outcome
    assert "out of memory" in outcome.message
    assert "failed to allocate" in outcome.message
