"""Work that will be needed soon, done in advance. Either a fork of this process computes while this
process waits for engines, or an engine computes while this process computes too.

A fork already has the recorded graph, the mapped file and the compiled kernels. It sends its result
as arrays, and ends. If no fork can be made, or the fork dies, this process does the work when it is
needed.
"""

import ctypes
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any, Generic, TypeVar

from lockstep.engine.kernels.threads import beside_parent, processors
from lockstep.harness.processes.engine_process import end_all
from lockstep.harness.processes.limits import die_with
from lockstep.harness.processes.side_by_side import BLAS, interrupts_later
from lockstep.harness.processes.wire import Channel, Closed, WireError, pack

A = TypeVar("A")
B = TypeVar("B")
BEHIND = 10  # niceness: engines have a time limit, and this work has none
LATER = 19  # niceness of work that is needed after that of other forks


class Ahead:
    """Work that a fork does in advance. `work` returns a result that can be sent. If the fork
    fails, this process runs `again` (default: `work`). If `again` is given, this process does not
    keep `work`, so that only the fork holds its data."""

    def __init__(
        self,
        work: Callable[[], Any],
        *,
        behind: int = BEHIND,
        again: Callable[[], Any] | None = None,
    ) -> None:
        self.work = again or work
        self.pid = 0
        self.channel: Channel | None = None
        with suppress(OSError):  # the system may be out of memory, processes or files
            ours, theirs = socket.socketpair()
            self.channel = Channel(ours)
            parent = os.getpid()
            with theirs, interrupts_later(), warnings.catch_warnings():
                # other threads hold no locks that the fork needs
                warnings.simplefilter("ignore", DeprecationWarning)
                self.pid = os.fork()
                if not self.pid:
                    answer(work, theirs, parent, behind)

    def result(self) -> Any:
        """Return the fork's result, or compute it here."""
        try:
            if self.channel is not None:
                return self.channel.receive()
        except (Closed, WireError, OSError):
            pass
        finally:
            self.close()
        return self.work()

    def close(self) -> None:
        """End the fork, and wait for it."""
        if self.channel is not None:
            self.channel.close()
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            self.pid = 0


def give_back() -> None:
    """Return freed memory to the system, so that forks and engines can use it. Otherwise glibc
    keeps freed memory that lies between used blocks."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # other C libraries lack this function
            ctypes.CDLL(None).malloc_trim(0)


def answer(work: Callable[[], Any], to: socket.socket, parent: int, behind: int) -> None:
    """Do the work in the fork, and send the result. The fork always ends in this function, and does
    not close its parent's files."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        die_with(parent)
        os.nice(behind)
        beside_parent()
        Channel(to).write(pack(work()))
    finally:
        with suppress(Exception):
            end_all()
        os._exit(0)


def may_fork() -> bool:
    """Return True if forking is safe and useful. On systems other than Linux, libraries do not
    survive a fork. On a single processor, a fork saves no time. A fork would hang if BLAS had
    threads, so commands and tests disable threads of BLAS."""
    alone = os.environ.get(BLAS) == "1"
    return sys.platform == "linux" and alone and len(os.sched_getaffinity(0)) > 1


def in_shares(
    work: Callable[[Sequence[A]], B], items: Sequence[A], most: int
) -> list[tuple[Sequence[A], B]]:
    """Divide the items into at most `most` shares, and return each share with its result. This
    process computes one share, and forks compute the other shares. Without items, the result is one
    empty share."""
    n = max(1, min(most, len(items), processors() if may_fork() else 1))
    shares = [items[i::n] for i in range(n)]
    others = [Ahead(partial(work, share)) for share in shares[1:]]
    try:
        found = [work(shares[0]), *(other.result() for other in others)]
        return list(zip(shares, found, strict=True))
    finally:
        for other in others:
            other.close()


class Awaited(Generic[A]):
    """Work that runs in a new thread and waits for another process. The caller's thread, not the
    new thread, must have started the other process, because a process dies with the thread that
    started it."""

    def __init__(self, work: Callable[[], A]) -> None:
        self.work = work
        self.found: list[A] = []
        self.failed: list[BaseException] = []
        self.thread = Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        try:
            self.found.append(self.work())
        except BaseException as error:
            self.failed.append(error)

    def result(self) -> A:
        """Return the result of the work, or raise its exception."""
        self.thread.join()
        if self.failed:
            raise self.failed[0]
        return self.found[0]


def at_once(first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
    """Run two works at the same time, the first in a thread (`Awaited`). The first work has ended
    when this returns or raises, except after an interrupt."""
    awaited = Awaited(first)
    try:
        other = second()
    except Exception:
        awaited.thread.join()
        raise
    return awaited.result(), other
