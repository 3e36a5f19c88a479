"""Opens engines, asks them questions, and turns every event into an outcome.

An adapter with `isolated` answers in its own process, with limits on time and memory. If the
process dies, the outcome of its question is a crash, and the next question gets a new process.
"""

import importlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from lockstep.harness.adapters import adapter_class, split_version
from lockstep.harness.adapters.parts.users import is_users
from lockstep.harness.asking.environments import python_of, variables
from lockstep.harness.asking.session import LocalSession, Session, in_words, outcome_of
from lockstep.harness.asking.template import forked_worker
from lockstep.harness.dumps.dump import DumpSession, folder_of, map_of
from lockstep.harness.foreign.engines import split_name
from lockstep.harness.http.served import ServedSession
from lockstep.harness.http.session import HttpSession, is_address, is_served
from lockstep.harness.processes.engine_process import (
    LOG_LINES,
    EngineProcess,
    Process,
    has_ended,
    of_memory,
)
from lockstep.harness.processes.kept_process import KeptProcess
from lockstep.harness.processes.limits import room_for
from lockstep.harness.processes.spare import SPARE
from lockstep.harness.processes.wire import Channel, Closed, WireError, WrongField, pack
from lockstep.harness.protocol.messages import printable
from lockstep.harness.protocol.session import ProgramSession, command_of
from lockstep.harness.records import Crashed, Malformed, Outcome, Settings, TimedOut, Unanswerable

__all__ = ["LOG_LINES", "IsolatedSession", "LocalSession", "Runner", "Session", "environment"]

WORKER = "lockstep.harness.asking.worker"
START_SECONDS = 120.0  # a cold start compiles; this time does not count for the first question


class Runner:
    """Opens sessions. `time_limit` is in seconds per question, and also limits the start of the
    user's code (a program, a server, a class). `memory_limit` is in bytes per worker; large models
    get more (`room_for`).

    `modules` are Python modules that register further adapters; workers import them too.
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
        """Open an engine, without asking it anything. Raises Unsupported for an adapter that does
        not exist, or for libraries of another build.

        A path, a command with arguments or the name of an engine of harness.foreign is a program
        (harness.protocol). dump:FOLDER is a run stored in that folder (harness.dumps). An address
        is a server (harness.http), and serve:COMMAND is a server that Lockstep starts.
        `NAME@VERSION` needs its environment (harness.asking.environments); NotBuilt is raised if it
        is missing.
        """
        for module in self.modules:
            importlib.import_module(module)
        if folder := folder_of(adapter):
            return DumpSession(folder, model, settings, map_of(adapter))
        limits = {"time_limit": self.time_limit, "start_limit": self.time_limit}
        memory_limit = self.memory_of(model)
        if is_address(adapter):
            return HttpSession(adapter, model, settings, **limits)
        if is_served(adapter):
            return ServedSession(adapter, model, settings, memory_limit=memory_limit, **limits)
        foreign = split_name(adapter)
        users = foreign is None and is_users(adapter)
        if not users and (command := command_of(adapter)):
            name = foreign[0] if foreign else ""
            return ProgramSession(
                command, model, settings, memory_limit=memory_limit, name=name, **limits
            )
        if not users:
            cls = adapter_class(adapter)
            if not cls.isolated and "@" not in adapter:
                return LocalSession(cls, model, settings)
            if not split_version(adapter)[1]:  # other versions have their own libraries
                cls.check_libraries()
        opening = {
            "adapter": adapter,
            "modules": list(self.modules),
            "model": None if model is None else str(model),
            "settings": settings,
            "memory_limit": memory_limit,
        }
        python = python_of(adapter) if split_version(adapter)[1] else None
        start = self.time_limit if users else START_SECONDS
        return IsolatedSession(opening, self.time_limit, python, start_limit=start)

    def memory_of(self, model: Path | None) -> int | None:
        if self.memory_limit is None or model is None or not model.is_file():
            return self.memory_limit
        return room_for(model.stat().st_size, self.memory_limit)


def is_outside(engine: str) -> bool:
    """Return True if the name refers to a user's engine: a dump, a server, a class, a command."""
    if folder_of(engine) is not None or is_address(engine) or is_users(engine):
        return True
    if is_served(engine):
        return True
    return command_of(engine) is not None


class Unable(Exception):
    """Raised if a worker does not have this engine. The message is one sentence with the reason."""


class IsolatedSession(Session):
    """An engine in a worker, which is started on demand and replaced after its death.

    `python` is the interpreter of another environment, for a version of an engine that is built
    there.
    """

    def __init__(
        self,
        opening: Mapping[str, Any],
        time_limit: float,
        python: Path | None = None,
        *,
        start_limit: float = START_SECONDS,
    ) -> None:
        self.opening = opening
        self.start_limit = start_limit
        self.python = python
        self.name = str(opening["adapter"])
        self.model = None if opening["model"] is None else Path(opening["model"])
        self.time_limit = time_limit
        self.worker: Worker | None = None
        self.is_ready = False  # the worker has loaded the engine, and knows the model

    @property
    def pid(self) -> int | None:
        return self.worker.process.pid if self.worker else None

    def another(self) -> "IsolatedSession":
        return IsolatedSession(
            self.opening, self.time_limit, self.python, start_limit=self.start_limit
        )

    def _ask(
        self,
        question: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        consume: Callable[[Any], None] | None = None,
    ) -> Outcome:
        frame = pack({"question": question, "args": list(args), "kwargs": kwargs})
        who = f"the worker of {self.opening['adapter']}"
        limit = self.start_limit
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
        except Unable as error:
            self._end()
            return Unanswerable(message=printable(str(error)))
        except Closed:
            death = self.worker.death() if self.worker else "did not start"
            signal = self.worker.signal if self.worker else ""
            message, log = f"{who} {death} during {in_words(question)}", self._end()
            message += of_memory(log, self.opening["memory_limit"])
            return Crashed(message=message, log=log, signal=signal)
        except WrongField as error:
            self._end()
            return Malformed(message=str(error))
        except WireError as error:
            return Crashed(message=f"{who} sent garbage: {error}", log=self._end())
        except BaseException:
            self._end()  # otherwise its answer would be taken for the answer to the next question
            raise
        if isinstance(outcome, Crashed):
            return replace(outcome, log=self._end())  # the worker's unfinished work ends with it
        return outcome

    def close(self) -> None:
        if self.worker is not None:
            self.worker.dismiss()
            self.worker = None

    def start(self) -> None:
        if self.worker is not None and has_ended(self.worker.process):
            self._end()  # it died between two questions
        if self.worker is None:
            self.is_ready = False
            if is_users(self.name) and self.python is None:
                self.worker = SPARE.take(repr(self.loading), self._new_worker)
            else:
                self.worker = self._new_worker()

    @property
    def loading(self) -> dict[str, Any]:
        """Return the options that a worker loads first. They do not depend on the model."""
        return {what: self.opening[what] for what in ("adapter", "modules", "memory_limit")}

    def _new_worker(self) -> "Worker":
        return Worker(self.python, is_users(self.name))

    def _loading_worker(self) -> "Worker":
        """Return a new worker that is already loading its adapter."""
        worker = self._new_worker()
        worker.load(self.loading, time.monotonic() + self.start_limit)
        return worker

    def _ready_worker(self) -> "Worker":
        self.start()
        assert self.worker is not None
        if not self.is_ready:
            early = self.worker.is_loading
            try:
                self._make_ready(self.worker)
            except (Unable, Closed):
                if not early:
                    raise
                self._end()  # the previous worker may have held what the new worker lacked
                self.worker = self._new_worker()
                self._make_ready(self.worker)
            self.is_ready = True
            if is_users(self.name):
                SPARE.start_next(self._loading_worker)
        return self.worker

    def _make_ready(self, worker: "Worker") -> None:
        deadline = time.monotonic() + self.start_limit
        worker.load(self.loading, deadline)
        match worker.channel.receive(deadline):
            case {"kind": "ready"}:
                pass
            case {"kind": "unable", "message": str(message)}:
                raise Unable(message)
            case _:
                raise WireError("the first message must be 'ready'")
        opening = {what: self.opening[what] for what in ("model", "settings")}
        worker.channel.send(opening, deadline)

    def _end(self) -> tuple[str, ...]:
        """Kill the worker, and return the last lines of its output."""
        worker, self.worker = self.worker, None
        return worker.kill() if worker else ()


class Worker(EngineProcess):
    """A child process that runs our own code, and the channel to it."""

    def __init__(self, python: Path | None, users: bool) -> None:
        """Prepare a worker. `users` is True if it will load the user's code. None of that code is
        loaded yet."""
        ours, theirs = socket.socketpair()
        with theirs:
            forked = None if python or users else forked_worker(theirs)
            process, log = forked or started_worker(theirs, python, users=users)
        self.channel = Channel(ours)
        self.is_loading = False
        super().__init__(process, log, self.channel)

    def load(self, loading: Mapping[str, Any], deadline: float) -> None:
        """Send the loading options once. If the process has already ended, the next question
        reports it."""
        if not self.is_loading:
            self.is_loading = True
            with suppress(Closed):
                self.channel.send(loading, deadline)


def started_worker(
    theirs: socket.socket, python: Path | None, *, users: bool
) -> tuple[Process, IO[bytes]]:
    """Start a worker. `users` is True if the user's code runs in it. That code may start processes,
    so a keeper process ends them together with the worker."""
    command = [*interpreter(python), str(theirs.fileno())]
    options: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "pass_fds": (theirs.fileno(),),
        "env": environment(python),
    }
    process = (
        KeptProcess(command, None, **options)
        if users
        else subprocess.Popen([*command, str(os.getpid())], start_new_session=True, **options)
    )
    assert process.stdout is not None
    return process, process.stdout


def interpreter(python: Path | None) -> list[str]:
    """Return the command before a worker's arguments. Another environment brings its own packages.
    Our code comes last in its path, because it may lie among our packages."""
    if python is None:
        return [sys.executable, "-P", "-m", WORKER]
    code = str(Path(__file__).parents[3])
    start = f"import sys; sys.path.append({code!r}); from {WORKER} import main; main()"
    return [str(python), "-P", "-c", start]


def environment(python: Path | None) -> dict[str, str]:
    """Return a worker's environment variables. They are the user's variables, but other versions
    use their own libraries."""
    if python is None:
        path = [entry or os.getcwd() for entry in sys.path]
        return os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    return variables() | {"PYTHONPATH": ""}


def is_piece(answer: Any) -> bool:
    return isinstance(answer, dict) and answer.get("kind") == "piece" and "value" in answer
