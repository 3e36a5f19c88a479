"""A child process in which an engine answers. It keeps the last lines of its log, reports how it
died, and can be ended."""

import os
import re
import signal
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import IO, Protocol

from lockstep.harness.processes.forked_process import ForkedProcess
from lockstep.harness.processes.kept_process import KeptProcess
from lockstep.harness.processes.side_by_side import killed_by, signal_name

LOG_LINES = 50
LOG_LINE_BYTES = 500
# matches the last words of programs in most languages
NO_MEMORY = re.compile(r"memory|alloc", re.IGNORECASE)
GRACE_SECONDS = 5.0  # between the end of the connection and the end of the process


Process = subprocess.Popen[bytes] | ForkedProcess


class Closable(Protocol):
    def close(self) -> None: ...


LIVE: "weakref.WeakSet[EngineProcess]" = weakref.WeakSet()


class EngineProcess:
    """A process that leads its own process group. Interrupts reach only the parent. All descendants
    of the process die with it."""

    def __init__(self, process: Process, log: IO[bytes], *ours: Closable) -> None:
        """Watch a process. `log` is its output. `ours` are our ends of its connections. The process
        ends when they are closed."""
        self.process = process
        self.ours = ours
        self.tail: deque[str] = deque(maxlen=LOG_LINES)
        self.reader = threading.Thread(target=keep_tail, args=(log, self.tail), daemon=True)
        self.reader.start()
        self.finalizer = weakref.finalize(self, end_group, process, ours, os.getpid())
        LIVE.add(self)

    def death(self) -> str:
        """Return how the process ended, as part of a sentence."""
        if not self.ends_in_time():
            return "closed its connection without an answer"
        self.finalizer()
        status = self.process.wait()
        if status < 0:
            return killed_by(-status)
        return f"exited with status {status}"

    @property
    def signal(self) -> str:
        """Return the name of the signal that killed the process, as found by `death`; else ""."""
        status = self.process.returncode
        return signal_name(-status) if status is not None and status < 0 else ""

    def dismiss(self) -> None:
        """Close our connections and wait until the process ends, so that its engine can clean up.
        Kill it if it does not end in time."""
        for end in self.ours:
            end.close()
        self.ends_in_time()
        self.kill()

    def kill(self) -> tuple[str, ...]:
        """Kill the process, and return the last lines of its log."""
        self.finalizer()
        self.reader.join(GRACE_SECONDS)
        return tuple(self.tail)

    def ends_in_time(self) -> bool:
        deadline = time.monotonic() + GRACE_SECONDS
        while not has_ended(self.process):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True


def of_memory(log: Sequence[str], limit: int | None) -> str:
    """Return a note if the memory limit probably caused the death; else ""."""
    if limit is None or not any(map(NO_MEMORY.search, log)):
        return ""
    return f" (its memory limit is {limit / (1 << 30):.1f} GiB, without mapped files)"


def has_ended(process: Process) -> bool:
    """Return True if the process has ended. This function does not reap the process, so that
    neither its id nor its group's id can be reused."""
    if process.returncode is not None:
        return True
    if isinstance(process, ForkedProcess):
        return process.has_ended()
    peek = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process.pid, peek) is not None


def end_all() -> None:
    """End every process that this process has started. Call this at the end of a fork, because a
    fork ends without finalizers."""
    for each in list(LIVE):
        each.finalizer()


def end_group(process: Process, ours: Sequence[Closable], owner: int) -> None:
    """Kill the process with all its descendants, and reap it. In a fork of its owner this does
    nothing, because the owner may still use it."""
    if os.getpid() != owner:
        return
    if isinstance(process, ForkedProcess | KeptProcess):
        process.kill()
    else:
        # works after the leader's death too, until the leader is reaped
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # afterwards, because a message about closed input would be taken for the engine's last words
    for end in ours:
        end.close()


def keep_tail(stream: IO[bytes], tail: deque[str]) -> None:
    """Read a log to its end, so that its writer never blocks, and keep the last lines."""
    with stream:
        while line := stream.readline(LOG_LINE_BYTES):
            tail.append(line.decode(errors="replace").rstrip())
