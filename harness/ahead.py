"""What will be wanted soon, computed by a fork of this process while this one waits for engines.

A fork has the recorded graph, the mapped file and the compiled kernels at once; it sends arrays
and ends. Where none can be made, or it dies, the work is done when it is wanted.
"""

import ctypes
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar

from harness.wire import Channel, Closed, WireError, pack

A = TypeVar("A")
B = TypeVar("B")
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Ahead:
    """work: gives what may cross a wire; it is forgotten if the fork does not end well."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.pid = 0
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        with (
            theirs,
            suppress(OSError),
            warnings.catch_warnings(),
        ):  # no memory, or no more processes
            warnings.simplefilter("ignore", DeprecationWarning)  # threads here hold nothing of it
            self.pid = os.fork()
            if not self.pid:
                ours.close()
                answer(work, theirs)

    def result(self) -> Any:
        """What the work gives: the fork's, or else done here."""
        try:
            return self.channel.receive()
        except (Closed, WireError, OSError):
            return self.work()
        finally:
            self.close()

    def close(self) -> None:
        """The fork has ended when this returns."""
        self.channel.close()
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            self.pid = 0


def answer(work: Callable[[], Any], to: socket.socket) -> None:
    """In the fork, which ends here whatever happens, and closes nothing of its parent's."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        Channel(to).write(pack(work()))
    finally:
        os._exit(0)


def may_fork() -> bool:
    """Elsewhere libraries of the system do not survive it; on one processor nothing is gained."""
    return sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1


def both(first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
    """The two at once, the first in a thread: it should be one that waits for another process."""
    found: list[A] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(first())
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=run, daemon=True)  # whoever is interrupted does not wait for an engine
    thread.start()
    other = second()
    thread.join()
    if failed:
        raise failed[0]
    return found[0], other
