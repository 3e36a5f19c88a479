"""Works for tests of executors. They are in a separate module, because other processes import
them."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.harness.parallel.children import Died, Done, Event, Said, Say, Work
from lockstep.harness.parallel.works import Executor, Resumable, events_of

WORKS, SAID = 5, 4


@dataclass(frozen=True)
class Counting:
    """A work that sends messages with its number and their count."""

    number: int

    def __call__(self, say: Say) -> None:
        for n in range(SAID):
            say((self.number, n))


@dataclass(frozen=True)
class Deadly:
    """A work that kills its process after a message."""

    def __call__(self, say: Say) -> None:
        say("so far")
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Stumbling:
    """A work that sends another work's messages, and waits once, before a given message, to be
    killed.

    While it waits, a note for the killer has the id of the work's parent process.
    """

    work: Any
    note: Path
    before: int  # number of messages before it stops

    def __call__(self, say: Say) -> None:
        said = 0

        def say_or_wait(value: Any) -> None:
            nonlocal said
            if said == self.before and not self.note.exists():
                part = self.note.with_suffix(".part")
                part.write_text(str(os.getppid()))
                part.rename(self.note)
                time.sleep(600)
            said += 1
            say(value)

        self.work(say_or_wait)

    def is_checkpoint(self, value: Any) -> bool:
        return isinstance(self.work, Resumable) and self.work.is_checkpoint(value)

    def behind(self, said: Sequence[Any]) -> "Stumbling":
        return replace(self, work=self.work.behind(said))


@dataclass(frozen=True)
class Steps:
    """A work of ten steps with a checkpoint after the fifth step; a file notes the completed steps.
    If restarted from the beginning, the work waits until the client is gone."""

    log: Path
    start: int = 0

    def __call__(self, say: Say) -> None:
        if self.start == 0 and self.log.exists():
            time.sleep(600)
        for step in range(self.start, 10):
            with self.log.open("a") as file:
                file.write(f"{step} ")
            say(step)

    def is_checkpoint(self, step: int) -> bool:
        return step == 4

    def behind(self, said: Sequence[int]) -> "Steps":
        return replace(self, start=said[-1] + 1)


def check_executor(executor: Executor) -> None:
    """Check that every work sends all its messages, in order, and then ends."""
    works: list[Work] = [Counting(n) for n in range(WORKS)]
    said: dict[int, list[Any]] = {n: [] for n in range(WORKS)}
    for number, event in events_of(executor, works):
        said[number].append(event.value if isinstance(event, Said) else event)
    assert said == {n: [*((n, i) for i in range(SAID)), Done()] for n in range(WORKS)}


def check_death(executor: Executor) -> None:
    """Check that the death of a process is reported only for the work of that process."""
    found = list(events_of(executor, [Counting(0), Deadly(), Counting(2)]))
    assert (1, Died("was killed by SIGKILL")) in found
    assert {number for number, event in found if event == Done()} == {0, 2}


# --- executors that are wrong -----------------------------------------------------------------

Events = Iterator[tuple[int, Event]]


@dataclass(frozen=True)
class LosesAWork:
    """A wrong executor that never repeats the work of a lost machine."""

    executor: Executor

    def run(self, works: Sequence[Work], files: Sequence[Path] = ()) -> Events:
        yield from (pair for pair in self.executor.run(works, files) if pair[0] != 1)


@dataclass(frozen=True)
class LosesWhatWasSaid:
    """A wrong executor that loses the messages of an interrupted work."""

    executor: Executor

    def run(self, works: Sequence[Work], files: Sequence[Path] = ()) -> Events:
        for number, event in self.executor.run(works, files):
            if number != 1 or not isinstance(event, Said):
                yield number, event


@dataclass(frozen=True)
class SaysTwice:
    """A wrong executor that reports the messages of a lost machine twice."""

    executor: Executor

    def run(self, works: Sequence[Work], files: Sequence[Path] = ()) -> Events:
        for number, event in self.executor.run(works, files):
            if number == 1 and isinstance(event, Said):
                yield number, event
            yield number, event


@dataclass(frozen=True)
class SpeaksOn:
    """A wrong executor that reports messages of an abandoned machine after the end of its work."""

    executor: Executor

    def run(self, works: Sequence[Work], files: Sequence[Path] = ()) -> Events:
        for number, event in self.executor.run(works, files):
            yield number, event
            if event == Done():
                yield number, Said((number, 0))


WRONG = (LosesAWork, LosesWhatWasSaid, SaysTwice, SpeaksOn)


@dataclass(frozen=True)
class SaysVariable:
    """A work that sends its process's environment."""

    name: str

    def __call__(self, say: Say) -> None:
        say([os.environ.get(self.name)])
