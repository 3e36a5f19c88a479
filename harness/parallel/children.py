"""Work in separate processes. Messages of these processes arrive at once, and their death is
noticed.

The process that checks a model runs our own engine and the judge, which read the model's
memory-mapped file. If the file shrinks meanwhile, that process ends (SIGBUS). The system may also
end it when memory runs out. The process that writes the report survives.
"""

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from lockstep.engine.errors import EngineError
from lockstep.harness.check.check import BadInput
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.processes.engine_process import end_all
from lockstep.harness.processes.kept_process import kill_marked
from lockstep.harness.processes.side_by_side import (
    TEMPORARY,
    interrupts_later,
    killed_by,
    watch_parent,
)
from lockstep.harness.records import Status

Say = Callable[[Any], None]
Work = Callable[[Say], None]  # work that calls the given function with its results

# a fork starts at once and shares loaded modules; other systems do not fork safely
START = "fork" if sys.platform == "linux" else "spawn"


@dataclass(frozen=True)
class Said:
    value: Any


@dataclass(frozen=True)
class Refused:
    """The work cannot be done because of bad input or a bad file. The message is one sentence."""

    message: str


@dataclass(frozen=True)
class Unanswered:
    """An engine did not answer a question that the work needs."""

    status: Status
    summary: str
    detail: dict[str, Any]


@dataclass(frozen=True)
class Failed:
    """An unexpected exception, which is a defect of Lockstep."""

    message: str
    traceback: str


@dataclass(frozen=True)
class Died:
    """The process ended before its work was done."""

    how: str  # such as "was killed by SIGBUS"


@dataclass(frozen=True)
class Done:
    """The work is done, and all its messages have arrived."""


Event = Said | Refused | Unanswered | Failed | Died | Done


def side_by_side(works: Sequence[Work], jobs: int) -> Iterator[tuple[int, Event]]:
    """Run the work functions, and yield their events as they arrive, each with its function's
    number. A function's last event is not `Said`. At most `jobs` functions run at a time.

    If the caller stops the iteration, the running works are ended. Their temporary folders, which
    may hold models of gigabytes, lie in a folder of this process and are removed with it.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-", ignore_cleanup_errors=True) as folder:
        try:
            yield from beside(works, jobs, folder)
        finally:  # an engine may have killed the child, or stopped its keeper, which would end it
            kill_marked(TEMPORARY, folder)


def beside(works: Sequence[Work], jobs: int, folder: str) -> Iterator[tuple[int, Event]]:
    waiting = list(enumerate(works))[::-1]
    running: dict[Connection, tuple[int, BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                number, work = waiting.pop()
                connection, process = start_child(work, folder)
                running[connection] = number, process
            ready: list[Any] = wait(list(running))
            for connection in ready:
                number, process = running[connection]
                event = next_event(connection, process)
                if not isinstance(event, Said):
                    del running[connection]
                    end(connection, process)
                yield number, event
    finally:
        for connection, (_, process) in running.items():
            end(connection, process)


def result_of(
    work: Work, progress: Callable[[str], None], tell: Callable[[Any], None] = lambda said: None
) -> Any:
    """Run a work function in a child process, and return its last message that is not a text.

    Texts go to `progress`. `tell` gets each other message at once. Raises BadInput for an
    impossible request, NoAnswer if an engine does not answer, and RuntimeError for a defect of
    Lockstep.
    """
    value = None
    for _, event in side_by_side([work], 1):
        match event:
            case Said(str(text)):
                progress(text)
            case Said(said):
                value = said
                tell(said)
            case Died(how):
                text = f"the process that did the work {how}; did a file change during the work?"
                raise NoAnswer("crashed", text, {})
            case _:
                raise_for(event)
    return value


def raise_for(event: Event) -> None:
    """Raise the work's exception in this process.

    The death of a process becomes a ChildProcessError.
    """
    match event:
        case Refused(message):
            raise BadInput(message)
        case Unanswered(status, summary, detail):
            raise NoAnswer(status, summary, detail)
        case Failed(message, trace):
            raise RuntimeError(f"{message}\n{trace}")
        case Died(how):
            raise ChildProcessError(f"a process of the run {how}")


def start_child(work: Work, folder: str) -> tuple[Connection, BaseProcess]:
    context = get_context(START)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=body, args=(work, theirs, folder))  # type: ignore[attr-defined]
    with interrupts_later():
        process.start()
    theirs.close()
    return ours, process


def body(work: Work, connection: Connection, folder: str) -> None:
    """Run the work in the child process. Interrupts from a terminal are left to the parent."""
    watch_parent()
    os.environ[TEMPORARY] = tempfile.tempdir = folder
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    event = ending_of(work, lambda value: connection.send(Said(value)))
    end_all()  # before the parent learns of the end and ends this process
    connection.send(event)
    connection.close()
    os._exit(0)  # skips the parent's exit handlers


def ending_of(work: Work, say: Say) -> Event:
    """Do the work, and return its last event."""
    try:
        work(say)
    except NoAnswer as error:
        return Unanswered(error.status, error.summary, error.detail)
    except (BadInput, EngineError, OSError) as error:
        return Refused(str(error))
    except Exception as error:
        return Failed(f"{type(error).__name__}: {error}"[:500], traceback.format_exc())
    return Done()


def next_event(connection: Connection, process: BaseProcess) -> Event:
    try:
        event: Event = connection.recv()
        return event
    except (EOFError, OSError):
        process.join()
        status = process.exitcode or 0
        if status < 0:
            return Died(killed_by(-status))
        return Died(f"exited with status {status}")


def end(connection: Connection, process: BaseProcess) -> None:
    connection.close()
    process.kill()
    process.join()
