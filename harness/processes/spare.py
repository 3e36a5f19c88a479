"""The next process of an engine, started while the current one is still at work.

An engine gets a new process for each model made of the user's. One in Python first loads Python,
numpy and the user's module: most of a second, several with torch. From the second on the next has
loaded by the time it is wanted; it has seen no model, and answers one session alone.
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
    """A process started in advance: at most one for each process and thread. A fork has none, and
    one that another thread had started would die with it. kept: True if a process is started
    ahead."""

    def __init__(self) -> None:
        self.kept = 0
        self.forget()

    def forget(self) -> None:
        self.owner = os.getpid()
        self.key: Hashable = None
        self.is_second = False  # or a later one with this key
        self.waiting: EngineProcess | None = None

    def take(self, key: Hashable, start: Callable[[], P]) -> P:
        """Return a process that was started in advance with the same key and environment, or a new
        one."""
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
        """Start the next process once the last one has loaded, so that they do not wait for each
        other. Only an engine that was opened twice is started again."""
        if self.is_ours() and self.is_second and self.waiting is None:
            with suppress(OSError):  # no more processes: it is started when it is wanted
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
        """Start processes ahead within this context."""
        self.kept += 1
        try:
            yield
        finally:
            self.kept -= 1
            self.end()
            self.forget()


SPARE = Spare()


def surroundings() -> tuple[Hashable, ...]:
    """Return the environment that a process inherits from this one at its start."""
    return os.getcwd(), tuple(sys.path), frozenset(os.environ.items())
