"""Parallel work: one narrow interface, implemented by local processes and by a cluster.

    works in -> (which work, what it says or becomes), as it comes -> the last event of each

The last event of a work is any but `Said` (children.py). Its death is one of them: a process that
is killed while it works is `Died`, here as on a cluster. A lost machine of a cluster is no event:
another machine repeats the work, without repeated messages.
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
        """Run the works. files: their inputs; a machine without them refuses the work. A caller
        that stops listening ends the rest."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """A resumable work: if its machine is lost, another continues after its last checkpoint."""

    def __call__(self, say: Say) -> None: ...

    def is_checkpoint(self, value: Any) -> bool: ...

    def behind(self, said: Sequence[Any]) -> Self:
        """Return the rest of the work after these messages, up to a checkpoint."""
        ...


@dataclass(frozen=True)
class Forks:
    """A process for each work, forked from this one with everything it has loaded."""

    jobs: int

    def run(self, works: Sequence[Work], files: Sequence[Path] = ()) -> Iterator[tuple[int, Event]]:
        return side_by_side(works, self.jobs)


@dataclass(frozen=True)
class Processes:
    """Fresh processes that stay, so that loaded code and models serve the next work. Their
    temporary folders lie in one of ours, which is removed even if they are killed."""

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
    """Yield all events, and check them: each work has one last event."""
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
    """Yield the result of each part; with an executor the first finished one comes first.

    died: makes a result of the death of a part's process; without it the death is raised.
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
