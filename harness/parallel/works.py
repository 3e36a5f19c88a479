"""Parallel work, with one interface for local processes and for a cluster.

    work functions -> (number of the function, event), as events arrive

A function's last event is any event except `Said` (children.py). If its process is killed, the last
event is `Died`, both on this machine and on a cluster. The loss of a cluster's machine causes no
event: another machine repeats the work, and Lockstep drops the repeated messages.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from lockstep.harness.asking.template import keep_template
from lockstep.harness.parallel.children import Died, Event, Said, Say, Work, raise_for, side_by_side
from lockstep.harness.parallel.work_process import WorkProcess
from lockstep.harness.processes.side_by_side import TEMPORARY

Part = TypeVar("Part")
Result = TypeVar("Result")


class Executor(Protocol):
    def run(self, works: Sequence[Work], files: Sequence[Path] = ()) -> Iterator[tuple[int, Event]]:
        """Run the works, and yield their events. `files` are the inputs; a machine that lacks them
        refuses the work. If the caller stops the iteration, the remaining works end."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """A work function that can be resumed: if its machine is lost, another machine continues after
    the last checkpoint."""

    def __call__(self, say: Say) -> None: ...

    def is_checkpoint(self, value: Any) -> bool: ...

    def behind(self, said: Sequence[Any]) -> Self:
        """Return the part of the work that remains after these messages. The last of these messages
        is a checkpoint."""
        ...


@dataclass(frozen=True)
class Forks:
    """Runs each work in a fork of this process. A fork has already loaded all modules."""

    jobs: int

    def run(self, works: Sequence[Work], files: Sequence[Path] = ()) -> Iterator[tuple[int, Event]]:
        return side_by_side(works, self.jobs)


@dataclass(frozen=True)
class Processes:
    """Runs works in new processes. Each process does several works, so that code and models are
    loaded once. The temporary folders of these processes lie in a folder of this process, which
    removes the folder even if they are killed."""

    jobs: int

    def run(self, works: Sequence[Work], files: Sequence[Path] = ()) -> Iterator[tuple[int, Event]]:
        waiting = list(enumerate(works))[::-1]
        busy: dict[Connection, tuple[int, WorkProcess]] = {}
        idle: list[WorkProcess] = []
        with TemporaryDirectory(prefix="lockstep-") as folder, ExitStack() as stack:
            while waiting or busy:
                while waiting and len(busy) < self.jobs:
                    if not idle:
                        idle.append(WorkProcess({TEMPORARY: folder}))
                        stack.callback(idle[0].kill)
                    process = idle.pop()
                    number, work = waiting.pop()
                    process.begin(work)
                    busy[process.connection] = number, process
                ready: list[Any] = wait(list(busy))
                for connection in ready:
                    number, process = busy[connection]
                    event = process.next_event()
                    if not isinstance(event, Said):
                        del busy[connection]
                        idle += [] if isinstance(event, Died) else [process]
                    yield number, event


def events_of(
    executor: Executor, works: Sequence[Work], files: Sequence[Path] = ()
) -> Iterator[tuple[int, Event]]:
    """Yield all events, and check that each work has exactly one last event."""
    left = set(range(len(works)))
    for number, event in executor.run(works, files):
        if number not in left:
            raise RuntimeError(f"work {number} sent a message after its end: {event}")
        left -= set() if isinstance(event, Said) else {number}
        yield number, event
    if left:
        raise RuntimeError(f"{len(left)} of {len(works)} works were lost: {sorted(left)[:8]}")


def as_done(
    work: Callable[[Part], Result],
    parts: Sequence[Part],
    executor: Executor | None,
    files: Sequence[Path] = (),
    died: Callable[[Part, str], Result] | None = None,
) -> Iterator[Result]:
    """Yield the result of each part. With an executor, results come in the order in which they are
    finished.

    `died` makes the result for a part whose process died. Without it, a death raises an exception.
    """
    if executor is None:
        with keep_template():
            yield from map(work, parts)
        return
    works = [partial(say_result, work, part) for part in parts]
    for number, event in events_of(executor, works, files):
        match event:
            case Said(value):
                yield value
            case Died(how) if died:
                yield died(parts[number], how)
            case _:
                raise_for(event)


def say_result(work: Callable[[Part], Result], part: Part, say: Say) -> None:
    say(work(part))
