"""The template process, which loads modules and forks workers, and workers that start without
it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lockstep.harness.asking import template
from lockstep.harness.context.runner import IsolatedSession
from lockstep.harness.processes.forked_process import ForkedProcess
from lockstep.harness.processes.side_by_side import BLAS
from lockstep.harness.records import EXACT
from tests.harness.context.test_runner import PATIENT, comes_true, is_running, worker_of


def test_llama_cpp_threads_in_a_fork_sleep_while_they_wait() -> None:
    """libgomp reads this variable once, when it is loaded, and prints it. If the variable is set
    too late, workers that share processors slow each other down."""
    wanted = os.environ | {"OMP_DISPLAY_ENV": "verbose"}
    wanted.pop("OMP_WAIT_POLICY", None)
    wanted.pop("GOMP_SPINCOUNT", None)
    program = "from lockstep.harness.asking.template_process import load; load()"
    run = subprocess.run(
        [sys.executable, "-c", program], env=wanted, capture_output=True, text=True, check=True
    )
    spins = set(re.findall(r"GOMP_SPINCOUNT = '(\d+)'", run.stderr))
    if not spins:
        pytest.skip("llama.cpp is not built with libgomp, or that does not say how it waits")
    assert spins == {"0"}


@pytest.fixture
def own_template(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Yield the process id of a template that belongs to this test alone."""
    monkeypatch.setattr(template, "KEPT", [])
    with template.keep_template():
        if not template.KEPT:
            pytest.skip("this system has no pidfd_open")
        yield template.KEPT[0].process.pid


def test_workers_are_forks_for_any_number_of_blas_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user's tests do not set the variable for the number of BLAS threads."""
    monkeypatch.delenv(BLAS, raising=False)
    monkeypatch.setattr(template, "KEPT", [])
    with template.keep_template(), PATIENT.open("fake", None, EXACT) as session:
        assert is_running(worker_of(session))
        assert isinstance(session, IsolatedSession)
        assert session.worker is not None
        assert isinstance(session.worker.process, ForkedProcess) == hasattr(os, "pidfd_open")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_workers_start_without_a_dead_or_hanging_template(
    number: signal.Signals, own_template: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template, "SECONDS", 0.2)
    os.kill(own_template, number)
    with PATIENT.open("fake", None, EXACT) as session:
        assert is_running(worker_of(session))
        assert isinstance(session, IsolatedSession)
        assert session.worker is not None
        assert not isinstance(session.worker.process, ForkedProcess)
    assert template.KEPT == []  # no later worker waits for it


def test_next_question_is_answered_if_template_and_worker_died(
    own_template: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next question reaps the worker. Another process may have its id by then, and must not be
    killed."""
    killed: list[int] = []
    kill = os.killpg
    with PATIENT.open("fake", None, EXACT) as session:
        pid = worker_of(session)
        os.kill(own_template, signal.SIGKILL)
        assert comes_true(lambda: not is_running(pid))
        monkeypatch.setattr(
            os, "killpg", lambda group, how: (killed.append(group), kill(group, how))
        )
        assert worker_of(session) != pid
    assert pid not in killed
