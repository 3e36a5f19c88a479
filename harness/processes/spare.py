"""Starts the next process of an engine while the current one still works.

An engine gets a new process for each probe model. A Python engine first loads Python, numpy and the
user's module, which takes most of a second, or several seconds with torch. From the third process
on, Lockstep starts each process before it is needed. Such a process has seen no model, and answers
only one session.
"""

import os
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread
from typing import TypeVar, cast

from lockstep.harness.processes.engine_process import EngineProcess, has_ended

P = TypeVar("P", bound=EngineProcess)


class Spare:
    """A process started in advance. Each process has at most one spare, which its main thread
    starts, because a spare dies with the thread that started it. A fork does not inherit the spare.
    `kept` is the number of open contexts in which processes are started in advance."""

    def __init__(self) -> None:
        self.kept = 0
        self.forget()

    def forget(self) -> None:
        self.owner = os.getpid()
        self.key: Hashable = None
        self.is_second = False  # True: the engine was opened at least twice with this key
        self.waiting: EngineProcess | None = None

    def take(self, key: Hashable, start: Callable[[], P]) -> P:
        """Return the process that was started in advance, if its key and environment are the same;
        else a new process."""
        if not self.is_ours():
            return start()
        key = key, surroundings()
        found = cast(P | None, self.waiting) if key == self.key else None
        if found is None or has_ended(found.process):
            self.end()
            found = start()
        self.is_second, self.key, self.waiting = key == self.key, key, None
        return found

    def start_next(self, start: Callable[[], EngineProcess]) -> None:
        """Start the next process after the previous process has loaded, so that the two do not slow
        each other down. Start it only for an engine that was opened at least twice."""
        if self.is_ours() and self.is_second and self.waiting is None:
            with suppress(OSError):  # without a free process, it is started on demand
                self.waiting = start()

    def is_ours(self) -> bool:
        if self.owner != os.getpid():
            self.forget()
        return self.kept > 0 and current_thread() is main_thread()

    def end(self) -> None:
        if self.waiting is not None and self.owner == os.getpid():
            self.waiting.kill()
        self.waiting = None

    @contextmanager
    def keep(self) -> Iterator[None]:
        """Start processes in advance within this context."""
        self.kept += 1
        try:
            yield
        finally:
            self.kept -= 1
            self.end()
            self.forget()


SPARE = Spare()


def surroundings() -> tuple[Hashable, ...]:
    """Return the environment that a new process inherits from this one."""
    return os.getcwd(), tuple(sys.path), frozenset(os.environ.items())
