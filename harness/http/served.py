"""`serve:COMMAND`: a server that Lockstep starts for each model, so that it can run any model."""

import os
import re
import secrets
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lockstep.engine.errors import Unsupported
from lockstep.harness.asking.session import in_words
from lockstep.harness.http.session import SERVE, START_SECONDS, HttpSession
from lockstep.harness.processes.engine_process import EngineProcess, has_ended, of_memory
from lockstep.harness.processes.kept_process import KeptProcess
from lockstep.harness.processes.variables import NO_BACKTRACE
from lockstep.harness.processes.wire import Closed
from lockstep.harness.protocol.session import found_command
from lockstep.harness.records import LORA, Answered, Crashed, Outcome, Settings, TimedOut

MODEL, PORT, LORAS = "{model}", "{port}", "{lora}"  # {lora} stands for paths with commas in between
# one pattern, because a path may contain another placeholder
PARTS = re.compile("|".join(map(re.escape, (MODEL, PORT, LORAS))))
HOST = "127.0.0.1"
# Linux assigns the ports above, and other systems those from 49152
FIRST_PORT, LAST_PORT = 20_000, 32_768
PORTS = 3  # number of ports to try: two may be taken by chance in the meantime
LOOK_SECONDS = 0.05  # between two checks that the port is open


def words_of(engine: str) -> list[str]:
    """Return the words of the command. Raises Unsupported if they cannot be run. No shell
    interprets them."""
    try:
        words = shlex.split(engine.removeprefix(SERVE))
    except ValueError as error:
        raise Unsupported(f"{engine!r} is not a command: {error}") from error
    for part, what in ((MODEL, "the file"), (PORT, "where it listens")):
        if not any(part in word for word in words):
            raise Unsupported(
                f"{engine}: the command has no {part}, {what}: "
                f'"{SERVE}./my-server --model {MODEL} --port {PORT}"'
            )
    return found_command(words)


def without_loras(words: Sequence[str]) -> list[str]:
    """Return the command without the option that contains {lora}."""
    kept: list[str] = []
    for word in words:
        if LORAS not in word:
            kept.append(word)
        elif not word.startswith("-") and kept[-1].startswith("-"):
            kept.pop()
    return kept


def free_port() -> int:
    """Return a port that is free now. Another program may take it before the server listens. The
    ports come from a range from which no system assigns ports automatically."""
    for _ in range(PORTS):
        port = FIRST_PORT + secrets.randbelow(LAST_PORT - FIRST_PORT)
        if is_free(port):
            return port
    with socket.create_server((HOST, 0)) as taken:
        return int(taken.getsockname()[1])


def is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


class ServedSession(HttpSession):
    """A session with a server that is started at the first question, and restarted after its
    death."""

    def __init__(
        self,
        engine: str,
        model: Path | None,
        settings: Settings,
        *,
        time_limit: float,
        memory_limit: int | None,
        start_limit: float = START_SECONDS,
    ) -> None:
        self.words = words_of(engine)
        here = f"http://{HOST}:1"  # placeholder until the server is started
        super().__init__(here, model, settings, time_limit=time_limit, start_limit=start_limit)
        self.name, self.memory_limit = engine, memory_limit
        self.process: EngineProcess | None = None
        self.question = ""  # the current question
        self.port = self.n_answered = 0  # port, and number of answers, of the current process
        self.port_lost = False  # another process took the port before the server could listen

    @property
    def pid(self) -> int | None:
        return self.process.process.pid if self.process else None

    def _ask(
        self,
        question: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        consume: Callable[[Any], None] | None = None,
    ) -> Outcome:
        self.question = question
        for _ in range(PORTS):
            self.port_lost = False
            outcome = self.ask_once(question, args, kwargs, consume)
            if not self.port_lost:
                break
        return outcome

    def ask_once(
        self,
        question: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        consume: Callable[[Any], None] | None,
    ) -> Outcome:
        try:
            failure = self.running()
            outcome = failure or super()._ask(question, args, kwargs, consume)
        except BaseException:
            self.end()
            raise
        if isinstance(outcome, TimedOut) and not failure:
            return TimedOut(seconds=outcome.seconds, log=self.end())
        if self.process is not None and has_ended(self.process.process):
            return self.death(f"during {in_words(question)}")
        self.n_answered += 1
        return outcome

    def ask_at_once(
        self, question: str, every: Sequence[tuple[Any, ...]], *, more_seconds: float
    ) -> list[Outcome]:
        found = super().ask_at_once(question, every, more_seconds=more_seconds)
        if all(isinstance(outcome, Answered) for outcome in found):
            return found
        # the kernel closes connections before it reports a death to the parent
        if self.process is not None and self.process.ends_in_time():
            return [self.death(f"while it was asked to {question} several times at once")]
        self.end()  # the server may be in the middle of an answer
        return found

    def outcome_of_closing(self, error: Closed) -> Outcome:
        """Return the outcome of a closed connection. The kernel closes the connections of a dying
        server before its parent knows of its death. A server that is still alive is restarted,
        because its state is then unknown."""
        return self.death(f"during {in_words(self.question)}")

    def running(self) -> Outcome | None:
        """Start the server if it is not running, and wait until it listens. Return the outcome if
        this fails, else None."""
        if self.process is not None and not has_ended(self.process.process):
            return None
        self.end()
        port, deadline = free_port(), time.monotonic() + self.start_limit
        self.port, self.n_answered = port, 0
        model = "" if self.model is None else str(self.model.resolve())
        loras = ",".join(str(path.resolve()) for path, _ in self.settings.files_of(LORA))
        parts = {MODEL: model, PORT: str(port), LORAS: loras}
        words = self.words if loras else without_loras(self.words)
        words = [PARTS.sub(lambda found: parts[found[0]], word) for word in words]
        self.process = start_server(words, self.memory_limit)
        self.to(f"http://{HOST}:{port}")
        while not listens(port):
            if has_ended(self.process.process):
                return self.death("before it listened")
            if time.monotonic() > deadline:
                return TimedOut(seconds=self.start_limit, log=self.end())
            time.sleep(LOOK_SECONDS)
        return None

    def starts_with(self, loras: Sequence[tuple[Path, float]]) -> bool:
        """Return True if the command contains the adapter files and all scales are 1, because a
        command cannot set other scales."""
        told = any(LORAS in word for word in self.words)
        return told and all(scale == 1 for _, scale in loras)

    def death(self, when: str) -> Crashed:
        assert self.process is not None
        how, signal = self.process.death(), self.process.signal
        log = self.end()
        text = f"{self.name} {how} {when}"
        # the port is taken, although the server and its children have ended
        if not is_free(self.port):
            self.port_lost = self.n_answered == 0
            text += f"; another process has its port, {self.port}"
        text += of_memory(log, self.memory_limit)
        return Crashed(message=text, log=log, signal=signal)

    def end(self) -> tuple[str, ...]:
        """Kill the server, and return the last lines of its output."""
        process, self.process = self.process, None
        return process.kill() if process else ()

    def close(self) -> None:
        self.end()


def start_server(words: Sequence[str], memory_limit: int | None) -> EngineProcess:
    process = KeptProcess(
        words,
        memory_limit,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**NO_BACKTRACE, **os.environ},
    )
    assert process.stdout is not None
    return EngineProcess(process, process.stdout)


def listens(port: int) -> bool:
    """Return True if a server listens on the port. If no server listens, the system may assign this
    very port to our end, and the connection then connects to itself. In this case return False."""
    try:
        with socket.create_connection((HOST, port), timeout=1.0) as found:
            return bool(found.getsockname() != found.getpeername())
    except OSError:
        return False
