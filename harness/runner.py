"""Asks engines, and turns everything that can happen into an outcome.

An adapter that says `isolated` answers in a process of its own, with limits on time and memory.
When that process dies, the question that it was asked has crashed, and the next one gets a new
process.
"""

import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from harness.adapters import adapter_class
from harness.adapters.base import Adapter
from harness.answers import Facts, MalformedAnswer, check_answer, check_piece, facts_of
from harness.environments import python_of, variables
from harness.processes import killed_by
from harness.records import (
    Answered,
    Crashed,
    Malformed,
    Outcome,
    Rejected,
    Settings,
    TimedOut,
    Unanswerable,
)
from harness.wire import Channel, Closed, WireError, WrongField, pack
from harness.worker import QUESTIONS, STREAMS, failure

LOG_LINES = 50
LOG_LINE_BYTES = 500
START_SECONDS = 120.0  # a cold start compiles; not charged to the first question
GRACE_SECONDS = 5.0  # between the end of the connection and the end of the process


class Session:
    """One engine with one model and one preset; a context manager."""

    name: str  # the adapter's
    model: Path | None = None
    own_sites = False  # of its adapter

    @cached_property
    def facts(self) -> Facts:
        """What answers are held against; our own reader looks once, when the first comes."""
        return replace(facts_of(self.model), own_sites=self.own_sites)

    @property
    def pid(self) -> int | None:
        """Of the worker, while there is one."""
        return None

    def ask(self, question: str, *args: Any, **kwargs: Any) -> Outcome:
        """The outcome of calling the adapter's method of that name."""
        if question not in QUESTIONS:
            raise ValueError(f"no question named {question!r} (known: {', '.join(QUESTIONS)})")
        return self._checked(question, args, kwargs, self._ask(question, args, kwargs))

    def stream(
        self, question: str, consume: Callable[[Any], None], *args: Any, **kwargs: Any
    ) -> Outcome:
        """Like `ask`, for an answer that comes in pieces: each is consumed before the next comes.

        The time limit is for the silence before a piece, because the consumer takes its time too.
        """
        if question not in STREAMS:
            raise ValueError(f"no stream named {question!r} (known: {', '.join(STREAMS)})")

        failed: list[Exception] = []

        def checked(piece: Any) -> None:
            try:
                check_piece(question, piece, self.facts, args, kwargs)
                consume(piece)
            except Exception as error:
                failed.append(error)
                raise

        try:
            outcome = self._ask(question, args, kwargs, checked)
            if failed:  # an engine in this process sees it as well, and may keep it
                raise failed[0]
        except MalformedAnswer as error:
            return Malformed(message=str(error))
        return self._checked(question, args, kwargs, outcome)

    def _checked(
        self, question: str, args: tuple[Any, ...], kwargs: dict[str, Any], outcome: Outcome
    ) -> Outcome:
        """No suite sees an answer that is none to its question."""
        if isinstance(outcome, Answered):
            try:
                check_answer(question, outcome.value, self.facts, args, kwargs)
            except MalformedAnswer as error:
                return Malformed(message=str(error))
        return outcome

    def _ask(
        self,
        question: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        consume: Callable[[Any], None] | None = None,
    ) -> Outcome:
        raise NotImplementedError

    def close(self) -> None:
        """Give back what the engine holds; a worker has ended when this returns."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Runner:
    """Opens sessions. `time_limit` is seconds per question, `memory_limit` bytes per worker.

    `modules` register further adapters; workers import them too.
    """

    def __init__(
        self,
        *,
        time_limit: float = 300.0,
        memory_limit: int | None = 4 << 30,
        modules: tuple[str, ...] = (),
    ) -> None:
        self.time_limit = time_limit
        self.memory_limit = memory_limit
        self.modules = modules

    def open(self, adapter: str, model: Path | None, settings: Settings) -> Session:
        """Raises Unsupported for an adapter that does not exist; the engine is not asked yet.

        `NAME@VERSION` needs its environment (harness.environments), or NotBuilt is raised.
        """
        for module in self.modules:
            importlib.import_module(module)
        cls = adapter_class(adapter)
        if not cls.isolated and "@" not in adapter:
            return LocalSession(cls, model, settings)
        opening = {
            "adapter": adapter,
            "modules": list(self.modules),
            "model": None if model is None else str(model),
            "settings": settings,
            "memory_limit": self.memory_limit,
        }
        python = python_of(adapter) if "@" in adapter else None
        return IsolatedSession(opening, self.time_limit, python)


class LocalSession(Session):
    """An engine in this process: trusted, and without limits."""

    def __init__(self, cls: type[Adapter], model: Path | None, settings: Settings) -> None:
        self.cls = cls
        self.name = cls.name
        self.own_sites = cls.own_sites
        self.model = model
        self.settings = settings
        self.adapter: Adapter | None = None

    def _ask(
        self,
        question: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        consume: Callable[[Any], None] | None = None,
    ) -> Outcome:
        started = time.perf_counter()
        extra = {} if consume is None else {"emit": consume}
        try:
            self.adapter = self.adapter or self.cls(self.model, self.settings)
            value = getattr(self.adapter, question)(*args, **kwargs, **extra)
        except Exception as error:
            return outcome_of(failure(error))
        return Answered(value=value, seconds=time.perf_counter() - started)

    def close(self) -> None:
        if self.adapter is not None:
            self.adapter.close()
            self.adapter = None


class IsolatedSession(Session):
    """An engine in a worker that is started when needed and replaced when it has died.

    python: the interpreter of another environment, for an engine's version that is there.
    """

    def __init__(
        self, opening: Mapping[str, Any], time_limit: float, python: Path | None = None
    ) -> None:
        self.opening = opening
        self.python = python
        self.name = str(opening["adapter"])
        self.model = None if opening["model"] is None else Path(opening["model"])
        self.time_limit = time_limit
        self.worker: Worker | None = None

    @property
    def pid(self) -> int | None:
        return self.worker.process.pid if self.worker else None

    def _ask(
        self,
        question: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        consume: Callable[[Any], None] | None = None,
    ) -> Outcome:
        frame = pack({"question": question, "args": list(args), "kwargs": kwargs})
        who = f"the worker of {self.opening['adapter']}"
        limit = START_SECONDS
        try:
            channel = self._ready_worker().channel
            limit = self.time_limit
            deadline = time.monotonic() + limit
            channel.write(frame, deadline)
            answer = channel.receive(deadline)
            while consume is not None and is_piece(answer):
                consume(answer["value"])
                answer = channel.receive(time.monotonic() + limit)
            outcome = outcome_of(answer)
        except TimeoutError:
            return TimedOut(seconds=limit, log=self._end())
        except Closed:
            death = self.worker.death() if self.worker else "did not start"
            return Crashed(message=f"{who} {death} during {question}", log=self._end())
        except WrongField as error:
            self._end()
            return Malformed(message=str(error))
        except WireError as error:
            return Crashed(message=f"{who} sent garbage: {error}", log=self._end())
        except BaseException:
            self._end()  # its answer would be taken for that of the next question
            raise
        if isinstance(outcome, Crashed):
            return replace(outcome, log=self._end())  # what it left half done dies with it
        return outcome

    def close(self) -> None:
        if self.worker is not None:
            self.worker.dismiss()
            self.worker = None

    def _ready_worker(self) -> "Worker":
        if self.worker is not None and has_ended(self.worker.process):
            self._end()  # it died while nobody waited for an answer
        if self.worker is None:
            self.worker = Worker(self.python)
            deadline = time.monotonic() + START_SECONDS
            self.worker.channel.send(self.opening, deadline)
            if self.worker.channel.receive(deadline) != {"kind": "ready"}:
                raise WireError("the first message must be 'ready'")
        return self.worker

    def _end(self) -> tuple[str, ...]:
        """Kill the worker and return its last words."""
        worker, self.worker = self.worker, None
        return worker.kill() if worker else ()


class Worker:
    """A child process, the channel to it, and the tail of its log."""

    def __init__(self, python: Path | None = None) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [*interpreter(python), str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                env=environment(python),
                start_new_session=True,  # an interrupt is for the parent; the group dies as one
            )
        self.channel = Channel(ours)
        assert self.process.stdout is not None
        self.tail: deque[str] = deque(maxlen=LOG_LINES)
        self.reader = threading.Thread(
            target=keep_tail, args=(self.process.stdout, self.tail), daemon=True
        )
        self.reader.start()
        self.finalizer = weakref.finalize(self, end_group, self.process, ours)

    def death(self) -> str:
        """How the process ended, for a sentence."""
        if not self._ends_in_time():
            return "closed its connection without an answer"
        self.finalizer()
        status = self.process.returncode
        if status < 0:
            return killed_by(-status)
        return f"exited with status {status}"

    def dismiss(self) -> None:
        """Let it end by itself, so that its engine can put things back; then make sure."""
        self.channel.close()
        self._ends_in_time()
        self.kill()

    def kill(self) -> tuple[str, ...]:
        """End it and return the last lines of its log."""
        self.finalizer()
        self.reader.join(GRACE_SECONDS)
        return tuple(self.tail)

    def _ends_in_time(self) -> bool:
        deadline = time.monotonic() + GRACE_SECONDS
        while not has_ended(self.process):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True


def interpreter(python: Path | None) -> list[str]:
    """The command that a worker's arguments follow.

    In another environment that environment's packages are meant, and of ours the code alone: it
    comes last, because it may lie among the packages of this one.
    """
    if python is None:
        return [sys.executable, "-P", "-m", "harness.worker"]
    code = str(Path(__file__).parents[1])
    start = f"import sys; sys.path.append({code!r}); from harness.worker import main; main()"
    return [str(python), "-P", "-c", start]


def environment(python: Path | None) -> dict[str, str]:
    """A worker's variables: the user's, but other versions have libraries of their own."""
    if python is None:
        path = [entry or os.getcwd() for entry in sys.path]
        return os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    return variables() | {"PYTHONPATH": ""}


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Without reaping: until then neither its id nor that of its group can be given away."""
    if process.returncode is not None:
        return True
    peek = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process.pid, peek) is not None


def end_group(process: subprocess.Popen[bytes], ours: socket.socket) -> None:
    """Kill a worker and whatever it has started, and reap it."""
    ours.close()
    os.killpg(process.pid, signal.SIGKILL)  # a dead leader still leads its group until reaped
    process.wait()


def keep_tail(stream: IO[bytes], tail: deque[str]) -> None:
    """Read a log to its end, so that its writer never blocks, keeping the last lines only."""
    with stream:
        while line := stream.readline(LOG_LINE_BYTES):
            tail.append(line.decode(errors="replace").rstrip())


def is_piece(answer: Any) -> bool:
    return isinstance(answer, dict) and answer.get("kind") == "piece" and "value" in answer


def outcome_of(answer: Any) -> Outcome:
    """Raises WireError for an answer that no worker of ours gives."""
    match answer:
        case {"kind": "value", "value": value, "seconds": float(seconds)}:
            return Answered(value=value, seconds=seconds)
        case {"kind": "rejected", "message": str(message)}:
            return Rejected(message=message)
        case {"kind": "unanswerable", "message": str(message), "of_model": bool(of_model)}:
            return Unanswerable(message=message, of_model=of_model)
        case {"kind": "crashed", "message": str(message)}:
            return Crashed(message=message)
        case {"kind": "malformed", "message": str(message)}:
            return Malformed(message=message)
    raise WireError("an answer must be a value, a refusal or a crash")
