"""Executes a work function on a Dask worker, in a process whose death does not end the worker."""

import hashlib
import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from lockstep.harness.asking.environments import LIBRARIES
from lockstep.harness.parallel.children import Died, Event, Refused, Said, Work
from lockstep.harness.parallel.work_process import WorkProcess
from lockstep.harness.processes.side_by_side import TEMPORARY

LOOK = 0.5  # seconds between two checks that the answer is still wanted
SOURCES = (".py", ".toml", ".hex", ".json")
PROCESSES = "lockstep_processes"  # attribute of a Dask worker: its free processes, with their runs


@dataclass(frozen=True)
class Begun:
    """The first message of an execution."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The parts of the run's environment that a worker needs too: folder, files, source code,
    libraries."""

    folder: str  # working folder, so that relative paths mean the same
    files: tuple[tuple[str, int | None], ...]  # sizes in bytes; None for a folder
    source: str
    libraries: str | None  # folder of the user's own build of llama.cpp

    @classmethod
    def here(cls, files: Sequence[Path]) -> Self:
        libraries = os.environ.get(LIBRARIES) or None
        wanted = [*files, Path(libraries)] if libraries else files
        paths = [path.absolute() for path in dict.fromkeys(wanted)]
        sizes = tuple((str(path), size_of(path)) for path in paths)
        return cls(folder=os.getcwd(), files=sizes, source=source_digest(), libraries=libraries)

    def lacking(self) -> str:
        """Return a clause that says what this machine lacks; "" if nothing is missing."""
        if self.source != source_digest():
            return "has another version of Lockstep: install the same version on every machine"
        same = "workers must see the same files under the same paths"
        if not Path(self.folder).is_dir():
            return f"sees no folder {self.folder}; {same}: start the run in a shared folder"
        for name, size in self.files:
            path = Path(name)
            if not path.exists():
                how = "; generated models are in TMPDIR" if TEMPORARY_NAME in name else ""
                return f"sees no file {name}; {same}{how}"
            if size_of(path) != size:
                return f"sees {size_of(path)} bytes in {name}, expected {size}; {same}"
        return ""


TEMPORARY_NAME = f"{os.sep}lockstep-"


def size_of(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


@cache
def source_digest() -> str:
    """Return a digest of our code and of the data files it reads (known divergences, code books).
    All machines must have the same version, because a difference between versions would look like a
    finding."""
    found = hashlib.sha256()
    top = Path(__file__).parents[2]
    for package in ("engine", "harness"):
        for path in sorted((top / package).rglob("*")):
            if path.suffix not in SOURCES:
                continue
            found.update(path.relative_to(top).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Task:
    """One submission of a work function. Dask may execute it several times."""

    run: str  # name of the run, and of the queue for its messages
    number: int
    attempt: str
    work: Work
    needs: Needs

    @property
    def key(self) -> str:
        return f"{self.run}-{self.number}-{self.attempt}"


def do_task(task: Task) -> None:
    """Execute a task in a thread of a Dask worker."""
    from distributed import Queue, get_worker

    worker: Any = get_worker()
    queue = Queue(task.run)
    execution = uuid4().hex
    try:
        for count, event in enumerate(events_of(task, worker), -1):
            queue.put(pickle.dumps((task.number, task.attempt, execution, count, event)))
    finally:
        queue.close()  # closes only our side


def events_of(task: Task, worker: Any) -> Iterator[Event | Begun]:
    """Yield the events of a task. The work's last event is missing if the client is gone."""
    yield Begun()
    if lacking := task.needs.lacking():
        yield Refused(f"the worker {worker.address} {lacking}")
        return
    process = process_for(task, worker)
    process.begin(task.work)
    event: Event = Said("")
    while isinstance(event, Said):
        while not wait([process.connection], LOOK):
            if not is_wanted(worker, task):
                process.kill()
                return
        event = process.next_event()
        if isinstance(event, Died):
            process.kill()
        elif not isinstance(event, Said):
            idle_of(worker).append((task.run, process))
        yield event


def process_for(task: Task, worker: Any) -> WorkProcess:
    """Return an idle process of this run, or a new process. Kill idle processes of other runs,
    because nobody reported the end of these runs."""
    idle = idle_of(worker)
    while idle:
        run, process = idle.pop()
        if run == task.run:
            return process
        process.kill()
    variables = {TEMPORARY: worker.local_directory, LIBRARIES: task.needs.libraries}
    return WorkProcess(variables, folder=task.needs.folder)


def idle_of(worker: Any) -> list[tuple[str, WorkProcess]]:
    found: list[tuple[str, WorkProcess]] = worker.__dict__.setdefault(PROCESSES, [])
    return found


def end_processes(run: str, dask_worker: Any = None) -> None:
    """End the processes of a finished run. Dask passes `dask_worker` by this name."""
    idle = idle_of(dask_worker)
    mine = [pair for pair in idle if pair[0] == run]
    for pair in mine:
        idle.remove(pair)
        pair[1].kill()


def is_wanted(worker: Any, task: Task) -> bool:
    """Return True if a client still waits for the task. Dask does not stop a running task; it only
    changes the task's state."""
    found = worker.state.tasks.get(task.key)
    return found is not None and found.state == "executing" and worker.status.name == "running"
