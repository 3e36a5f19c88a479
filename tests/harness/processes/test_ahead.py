"""Work in a fork has the same result as work on demand, whatever happens to the fork."""

import gc
import os
import signal
import time
import weakref
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from lockstep.harness.check.check import open_plan
from lockstep.harness.context.runner import IsolatedSession, Runner
from lockstep.harness.judging.noise import RUNS
from lockstep.harness.processes.ahead import Ahead, at_once, may_fork
from lockstep.harness.records import EXACT, Answered
from tests.harness.check.test_check import plan_for
from tests.models import builtin

forks = pytest.mark.skipif(not may_fork(), reason="forks: one processor, or not Linux")


@forks
def test_fork_returns_the_result_of_its_work() -> None:
    made = os.getpid()
    found = Ahead(lambda: [np.arange(3.0), np.array(os.getpid())]).result()
    assert found[0].tolist() == [0, 1, 2]
    assert int(found[1]) != made


@forks
@pytest.mark.parametrize("death", ["killed", "failed", "gave what may not cross"])
def test_work_that_a_fork_fails_is_done_locally(death: str) -> None:
    here = os.getpid()

    def work() -> object:
        if os.getpid() == here:
            return "done here"
        if death == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if death == "failed":
            raise ValueError("not in the fork")
        return object()

    assert Ahead(work).result() == "done here"


@forks
def test_input_of_a_fork_is_dropped_if_another_work_replaces_it() -> None:
    class Shown(list[float]):
        pass

    def die(shown: Shown) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    shown = Shown([1.0])
    seen = weakref.ref(shown)
    ahead = Ahead(partial(die, shown), again=lambda: "asked again")
    del shown
    assert seen() is None
    assert ahead.result() == "asked again"


def test_work_is_done_locally_if_no_process_can_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", full)
    assert Ahead(lambda: "done here").result() == "done here"


@forks
def test_unawaited_fork_is_ended() -> None:
    ahead = Ahead(lambda: time.sleep(600))
    pid = ahead.pid
    ahead.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@forks
def test_noise_floor_computed_ahead_is_the_same(tmp_path: Path) -> None:
    opened = open_plan(plan_for(builtin("q8_0", tmp_path), oracle="llama.cpp"), lambda _: None)
    try:
        honest, batches = opened.context.honest, opened.context.batches
        honest.begin(batches, seed=5, runs=RUNS)
        ahead = honest.floor(batches, seed=5, runs=RUNS)
        here = honest.floor(batches, seed=5, runs=RUNS)
        assert ahead.relative == here.relative > 0
        assert all(map(np.array_equal, ahead.logits, here.logits))
        honest.begin(batches, seed=6, runs=RUNS)  # the result is never requested
    finally:
        opened.close()


def test_two_works_run_at_once_and_the_first_error_is_raised() -> None:
    assert at_once(lambda: 1, lambda: "b") == (1, "b")

    def fails() -> int:
        raise ValueError("the first")

    with pytest.raises(ValueError, match="the first"):
        at_once(fails, lambda: 2)
    with pytest.raises(ValueError, match="the first"):
        at_once(lambda: 2, fails)


@forks
def test_fork_that_forgets_an_engine_does_not_end_it(tmp_path: Path) -> None:
    """The parent may still use an engine that the fork's garbage collector frees."""
    with Runner().open("gguf-py", builtin("f32", tmp_path), EXACT) as session:
        assert isinstance(session, IsolatedSession)
        session.start()
        pid = session.pid

        def forget() -> str:
            session.worker = None
            gc.collect()
            return "forgotten"

        assert Ahead(forget).result() == "forgotten"
        assert isinstance(session.ask("metadata"), Answered)
        assert session.pid == pid
