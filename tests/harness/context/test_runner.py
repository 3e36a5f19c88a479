"""Each behaviour of an engine becomes an outcome, and the engine answers the next question."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.errors import Unsupported
from lockstep.harness.asking import template
from lockstep.harness.context.runner import LOG_LINES, IsolatedSession, Runner, Session
from lockstep.harness.context.suite import line_that_says_why
from lockstep.harness.processes.forked_process import ForkedProcess
from lockstep.harness.records import (
    EXACT,
    Answered,
    Crashed,
    Fault,
    Malformed,
    Nodes,
    Outcome,
    Rejected,
    Request,
    TimedOut,
    Unanswerable,
)
from tests.places import ROOT

MODULES = ("tests.fake_engines",)
PATIENT = Runner(time_limit=60, memory_limit=1 << 30, modules=MODULES)
HASTY = Runner(time_limit=0.5, modules=MODULES)


@pytest.fixture(params=["started", "forked"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Start workers as new processes, or fork them from a template."""
    if request.param == "started":
        monkeypatch.setattr(template, "KEPT", [])
        yield request.param
        return
    with template.keep_template():
        if not template.KEPT:
            pytest.skip("this system has no pidfd_open")
        yield request.param


@pytest.fixture
def session() -> Iterator[Session]:
    with PATIENT.open("fake", None, EXACT) as session:
        yield session


def does(session: Session, deed: str) -> Outcome:
    return session.ask("tokenize", [deed.encode()])


def worker_of(session: Session) -> int:
    """Return the process id of the worker that answers."""
    outcome = session.ask("greedy", [], 1)
    assert isinstance(outcome, Answered), outcome
    assert session.pid == outcome.value[0]
    return int(outcome.value[0])


def is_running(pid: int) -> bool:
    """Return True if a process has not ended. A zombie has ended."""
    status = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return bool(status) and not status.startswith("Z")


def comes_true(condition: Callable[[], bool]) -> bool:
    """Wait until the condition is true. The time limit matters only for a failing test."""
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_answer_has_its_time_and_is_not_disturbed_by_output(
    session: Session,
) -> None:
    outcome = session.ask("dequantize", "I8", np.arange(5, dtype=np.uint8))
    assert isinstance(outcome, Answered)
    assert outcome.value.tolist() == [0, 2, 4, 6, 8]
    assert outcome.value.dtype == np.float32
    assert outcome.seconds >= 0


def test_worker_is_a_process_that_lives_across_questions(
    session: Session,
) -> None:
    assert session.pid is None
    assert worker_of(session) == worker_of(session) != os.getpid()


@pytest.mark.parametrize(
    ("deed", "ending", "last_words"),
    [
        ("segfault", "was killed by SIGSEGV", "Segmentation fault"),
        ("abort", "was killed by SIGABRT", "GGML_ASSERT(it) failed"),
        ("ggml_abort", "was killed by SIGABRT", "it.c:7: it"),
        ("kill", "was killed by SIGKILL", "asked to kill"),
        ("exit", "exited with status 3", "asked to exit"),
        ("eat_memory", "out of memory", "asked to eat_memory"),
        ("babble", "sent garbage", "asked to babble"),
        ("chatter", "was killed by SIGABRT", "line 99999"),
    ],
)
def test_death_is_a_crash_with_last_words_and_the_next_answer_comes(
    session: Session, deed: str, ending: str, last_words: str
) -> None:
    before = worker_of(session)
    outcome = does(session, deed)
    assert isinstance(outcome, Crashed), outcome
    assert ending in outcome.message
    assert any(last_words in line for line in outcome.log), outcome.log
    assert len(outcome.log) <= LOG_LINES
    assert not is_running(before)
    assert worker_of(session) != before


def test_engine_may_decode_a_large_model_within_the_machines_memory(
    tmp_path: Path,
) -> None:
    """A gigabyte of four-bit weights takes eight gigabytes in F32. Decoding all is honest."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = []
    for size in (1 << 20, 1 << 30, 1 << 40):
        path = tmp_path / f"{size}.gguf"
        with path.open("wb") as file:
            file.truncate(size)
        with Runner(memory_limit=1 << 30).open("llama.cpp", path, EXACT) as session:
            assert isinstance(session, IsolatedSession)
            limits.append(session.opening["memory_limit"])
    assert limits == [1 << 30, min(machine, 16 << 30), machine]


@pytest.mark.parametrize("deed", ["hang", "hang_in_c"])
def test_hang_is_a_timeout_and_the_next_question_is_answered(deed: str) -> None:
    with HASTY.open("fake", None, EXACT) as session:
        outcome = does(session, deed)
        assert isinstance(outcome, TimedOut), outcome
        assert outcome.seconds == 0.5
        assert outcome.log[-1] == f"asked to {deed}"
        assert session.pid is None
        worker_of(session)


def test_worker_killed_from_outside_is_one_crash_of_its_question(
    session: Session,
) -> None:
    pid = worker_of(session)
    assert isinstance(session, IsolatedSession)
    assert session.worker
    log = session.worker.tail
    outcomes: list[Outcome] = []
    asker = threading.Thread(target=lambda: outcomes.append(does(session, "hang")))
    asker.start()
    assert comes_true(lambda: "asked to hang" in log)
    os.kill(pid, signal.SIGKILL)
    asker.join(30)
    (outcome,) = outcomes
    assert isinstance(outcome, Crashed)
    assert "was killed by SIGKILL during tokenize" in outcome.message
    assert worker_of(session) != pid


def test_abort_of_llama_cpp_runs_no_debugger(session: Session) -> None:
    outcome = does(session, "ggml_abort")
    assert isinstance(outcome, Crashed)
    said = outcome.log.index("it.c:7: it")
    assert outcome.log[said + 1].startswith("Fatal Python error"), outcome.log


def test_idle_worker_that_died_is_replaced(session: Session) -> None:
    pid = worker_of(session)
    os.kill(pid, signal.SIGKILL)
    assert comes_true(lambda: not is_running(pid))
    assert worker_of(session) != pid


@pytest.mark.parametrize("engine", ["fake", "fake-local"])
def test_refusal_states_its_kind(engine: str) -> None:
    with PATIENT.open(engine, None, EXACT) as session:
        assert session.ask("metadata") == Rejected(
            message="MalformedFile: this is no GGUF file (at byte 0)"
        )


@pytest.mark.parametrize("engine", ["fake", "fake-local"])
def test_a_question_that_an_engine_does_not_offer_is_unanswerable(engine: str) -> None:
    with PATIENT.open(engine, None, EXACT) as session:
        outcome = session.ask("detokenize", [[1]], remove_special=True, unparse_special=False)
        assert outcome == Unanswerable(message=f"{engine} does not detokenize")


@pytest.mark.parametrize("engine", ["fake", "fake-local"])
def test_any_other_exception_is_a_crash_with_its_traceback(engine: str) -> None:
    with PATIENT.open(engine, None, EXACT) as session:
        outcome = session.ask("evaluate", Request(batches=()))
        assert isinstance(outcome, Crashed)
        assert "fake_engines.py" in outcome.message
        assert outcome.message.startswith("ZeroDivisionError: a bug in the adapter")
        assert isinstance(session.ask("greedy", [], 1), Answered)


def test_a_refusal_keeps_the_worker(session: Session) -> None:
    pid = worker_of(session)
    assert does(session, "refuse") == Rejected(message="EngineError: refused on purpose")
    assert worker_of(session) == pid


def test_answer_of_a_forbidden_type_is_malformed() -> None:
    with PATIENT.open("fake-wrong-type", None, EXACT) as session:
        outcome = session.ask("greedy", [], 1)
        assert isinstance(outcome, Malformed)
        assert "a object cannot be sent" in outcome.message


def test_engine_in_this_process_has_no_worker() -> None:
    with PATIENT.open("fake-local", None, EXACT) as session:
        outcome = session.ask("greedy", [], 1)
        assert isinstance(outcome, Answered)
        assert outcome.value == [os.getpid()]
        assert session.pid is None


def test_an_engine_that_refuses_its_model_rejects_the_question() -> None:
    with PATIENT.open("fake-clumsy", None, EXACT) as session:
        assert session.ask("metadata") == Rejected(message="EngineError: there is no such model")


def test_unknown_question_is_an_error_of_the_caller(session: Session) -> None:
    with pytest.raises(ValueError, match="no question named 'close'"):
        session.ask("close")


def test_an_engine_that_does_not_exist_is_refused_with_the_choices() -> None:
    with pytest.raises(Unsupported, match=r"no engine named 'faker' .*fake"):
        PATIENT.open("faker", None, EXACT)


@pytest.mark.parametrize("deed", ["refuse", "abort"])
def test_closed_session_leaves_no_worker(deed: str) -> None:
    with PATIENT.open("fake", None, EXACT) as session:
        pids = [worker_of(session)]
        does(session, deed)
        pids.append(worker_of(session))
        assert is_running(pids[-1])
    assert session.pid is None
    assert not any(map(is_running, pids))


def test_forgotten_session_leaves_no_worker() -> None:
    session = PATIENT.open("fake", None, EXACT)
    pid = worker_of(session)
    del session
    assert comes_true(lambda: not is_running(pid))


def test_worker_with_other_variables_at_start_is_not_forked(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's class may load libraries that read variables only when they are loaded."""
    with PATIENT.open("fake", None, EXACT) as session:
        assert isinstance(session, IsolatedSession)
        session.start()
        assert session.worker is not None
        assert isinstance(session.worker.process, ForkedProcess) == (way == "forked")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with PATIENT.open("fake", None, EXACT) as session:
        assert isinstance(session, IsolatedSession)
        session.start()
        assert session.worker is not None
        assert not isinstance(session.worker.process, ForkedProcess)


def test_worker_ends_at_once_though_forks_hold_its_connection(session: Session) -> None:
    pid = worker_of(session)
    assert isinstance(session, IsolatedSession)
    assert session.worker is not None
    with socket.socket(fileno=os.dup(session.worker.channel.stream.fileno())):
        session.worker.channel.close()
        assert comes_true(lambda: not is_running(pid))


def test_worker_in_a_call_dies_with_its_parent(way: str) -> None:
    script = (
        "from tests.harness.context.test_runner import PATIENT, EXACT, does, template, worker_of\n"
        f"if {way == 'forked'}: kept = template.keep_template(); kept.__enter__()\n"
        "session = PATIENT.open('fake', None, EXACT)\n"
        "import sys; sys.stdout.write(f'{worker_of(session)}\\n'); sys.stdout.flush()\n"
        "does(session, 'hang_in_c')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
    assert comes_true(lambda: not is_running(pid))


@pytest.mark.parametrize("name", ["reference", "gguf-py", "llama.cpp"])
def test_engine_lookup_does_not_load_llama_cpp(name: str) -> None:
    script = (
        "import sys; from lockstep.harness.adapters import adapter_class\n"
        f"assert adapter_class({name!r}).name == {name!r}\n"
        "sys.exit(', '.join({'llama_cpp', 'gguf'} & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


# --- answers in pieces ------------------------------------------------------------------------

TOKENS = (Batch.of([5, 6, 7]),)


def token_of(piece: Nodes) -> int:
    return int(piece.data[:4].view(np.float32)[0])


def ending(kind: str) -> Fault:
    return Fault(step=0, ubatch=0, index=0, kind=kind, draw=0)


def test_pieces_arrive_in_order_and_before_the_answer(session: Session) -> None:
    seen: list[int] = []
    outcome = session.stream("capture", lambda p: seen.append(token_of(p)), TOKENS, None)
    assert isinstance(outcome, Answered)
    assert outcome.value.nodes == 3
    assert seen == [5, 6, 7]
    worker_of(session)


@pytest.mark.parametrize(
    ("kind", "expected"), [("segfault", Crashed), ("refuse", Rejected), ("babble", Crashed)]
)
def test_end_of_a_stream_is_its_outcome_and_earlier_pieces_are_kept(
    kind: str, expected: type[Outcome], session: Session
) -> None:
    seen: list[int] = []
    outcome = session.stream("capture", lambda p: seen.append(token_of(p)), TOKENS, ending(kind))
    assert isinstance(outcome, expected), outcome
    assert seen == [5, 6, 7]
    worker_of(session)


def test_silent_stream_times_out() -> None:
    with HASTY.open("fake", None, EXACT) as session:
        outcome = session.stream("capture", lambda _: None, TOKENS, ending("hang"))
    assert isinstance(outcome, TimedOut)


def test_slow_consumer_is_not_blamed_on_the_engine() -> None:
    with HASTY.open("fake", None, EXACT) as session:
        outcome = session.stream("capture", lambda _: time.sleep(0.4), TOKENS, None)
    assert isinstance(outcome, Answered)


def test_consumer_that_fails_ends_the_stream_and_the_next_answer_comes(
    session: Session,
) -> None:
    def fails(piece: object) -> None:
        raise ZeroDivisionError("in the consumer")

    with pytest.raises(ZeroDivisionError, match="consumer"):
        session.stream("capture", fails, TOKENS, None)
    worker_of(session)


def test_question_without_pieces_cannot_be_streamed(session: Session) -> None:
    with pytest.raises(ValueError, match="no stream named 'greedy'"):
        session.stream("greedy", lambda _: None)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("IndexError: index 7\n  File engine.py, line 3", "IndexError: index 7"),
        ("Traceback (most recent call last):\n  File e.py, line 3\nKeyError: 'x'", "KeyError: 'x'"),
        ("", ""),
    ],
)
def test_line_with_the_cause_is_chosen_among_several(message: str, why: str) -> None:
    assert line_that_says_why(message) == why
