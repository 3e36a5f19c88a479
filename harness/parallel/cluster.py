"""Runs works on the workers of a Dask scheduler: an executor for `harness.parallel.works`.

Dask keeps the queue, gives each work to a free worker, and repeats it on another worker if a worker
is lost. Messages come in our own format, through one of Dask's queues. This process holds back a
work's messages until the work is done or reaches a checkpoint. It ignores late messages of a lost
worker.
"""

import asyncio
import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from lockstep.harness.check.check import BadInput
from lockstep.harness.parallel.children import Died, Event, Refused, Said, Work
from lockstep.harness.parallel.cluster_worker import Begun, Needs, Task, do_task, end_processes
from lockstep.harness.parallel.works import Executor, Processes, Resumable

CONNECT = 10.0  # seconds
WORKERS = 30.0  # seconds until the first worker must be there
LOOK = 0.05  # seconds between two looks for messages
SCHEDULER = "Scheduler"  # Dask's name
MOST_LOSSES = 4  # machines that may be lost on one work without progress


@contextmanager
def executor_for(jobs: int, cluster: str | None) -> Iterator[Executor | None]:
    """Yield an executor; None if this process does the work. Raises BadInput."""
    if cluster is None:
        yield None if jobs == 1 else Processes(jobs)
    else:
        with on_cluster(cluster) as executor:
            yield executor


@contextmanager
def on_cluster(address: str) -> Iterator["DaskCluster"]:
    """Yield the executor of a cluster. Raises BadInput if there is no scheduler or no worker."""
    try:
        from distributed import Client
    except ImportError as error:
        text = f"--cluster needs Dask ({error}): pip install 'gguf-lockstep[cluster]'"
        raise BadInput(text) from error
    try:
        who = asyncio.run(who_answers(address))
        if who != SCHEDULER:
            raise ValueError(f"a {who} does")
        client = Client(address, timeout=CONNECT, set_as_default=False)
    # a scheme without its library raises TypeError
    except (OSError, TypeError, ValueError) as error:
        why = str(error) or f"no valid answer within {CONNECT:.0f} s"
        text = f"--cluster {address}: no Dask scheduler answers there ({why})"
        raise BadInput(f"{text}; start one with `dask scheduler`, or omit --cluster") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=WORKERS)
        except TimeoutError as error:
            text = f"--cluster {address}: the scheduler has no workers after {WORKERS:.0f} s"
            raise BadInput(f"{text}; start one with `dask worker {address}`") from error
        yield DaskCluster(client)


async def who_answers(address: str) -> str:
    """Return the type of the Dask process at the address. Without this check, a client would wait
    for ever if another program listens at the address, and would send a worker requests that only a
    scheduler understands."""
    from distributed import Security
    from distributed.core import rpc

    async with rpc(address, connection_args=Security().get_connection_args("client")) as there:
        said = await asyncio.wait_for(there.identity(), CONNECT)
    return str(said["type"])


@dataclass(kw_only=True)
class Progress:
    """The state of one work: the messages that count, and the messages that wait for the next
    checkpoint."""

    work: Work
    future: Any
    attempt: str
    execution: str = ""  # Dask may execute the same attempt again
    next_message: int = 0
    released: list[Any] = field(default_factory=list)
    held: list[Any] = field(default_factory=list)
    losses: int = 0  # number of losses since the last checkpoint
    is_over: bool = False  # True: Dask reports the end

    def keep(self, value: Any) -> list[Any]:
        """Store a message, and return the messages that begin to count because of it."""
        if isinstance(value, str):
            return [value]  # a progress message may be repeated
        self.held.append(value)
        if not (isinstance(self.work, Resumable) and self.work.is_checkpoint(value)):
            return []
        self.losses = 0
        return self.release()

    def release(self) -> list[Any]:
        values, self.held = self.held, []
        self.released += values
        return values


class DaskCluster:
    """The workers of a scheduler. Only one run can use it at a time."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def run(self, works: Sequence[Work], files: Sequence[Path] = ()) -> Iterator[tuple[int, Event]]:
        from distributed import Queue

        self.name = f"lockstep-{uuid4().hex}"
        self.needs = Needs.here(files)
        queue = Queue(self.name, client=self.client)
        self.open: dict[int, Progress] = {}
        try:
            for number, work in enumerate(works):
                self.open[number] = self.submit(number, work)
            while self.open:
                came = queue.get(batch=True)
                for message in came:
                    yield from self.take_event(*pickle.loads(message))
                if not came:
                    yield from self.note_broken()
                    time.sleep(LOOK)
        finally:
            self.client.cancel([progress.future for progress in self.open.values()])
            # a worker that leaves just now has ended its processes itself
            with suppress(Exception):
                self.client.run(end_processes, self.name)
            queue.close()

    def submit(self, number: int, work: Work) -> Progress:
        attempt = uuid4().hex
        task = Task(run=self.name, number=number, attempt=attempt, work=work, needs=self.needs)
        future = self.client.submit(do_task, task, key=task.key, pure=False)
        return Progress(work=work, future=future, attempt=attempt)

    def take_event(
        self, number: int, attempt: str, execution: str, count: int, event: Event | Begun
    ) -> Iterator[tuple[int, Event]]:
        """Yield the events that follow from a worker's message. `count` is the message's number
        within this execution."""
        progress = self.open.get(number)
        if progress is None or progress.attempt != attempt:
            return  # a message from an attempt that was given up
        if isinstance(event, Begun):
            yield from self.begin_again(number, progress, execution)
            return
        if progress.execution != execution:
            return
        if count != progress.next_message:
            raise RuntimeError(f"{count - progress.next_message} messages of a worker were lost")
        progress.next_message += 1
        if isinstance(event, Said):
            yield from ((number, Said(value)) for value in progress.keep(event.value))
            return
        del self.open[number]
        yield from ((number, Said(value)) for value in progress.release())
        yield number, event

    def begin_again(
        self, number: int, progress: Progress, execution: str
    ) -> Iterator[tuple[int, Event]]:
        """Note the beginning of an execution. If the work had begun before, its first worker was
        lost, and it continues from the last checkpoint."""
        again = bool(progress.execution)
        progress.execution, progress.next_message = execution, 0
        if again:
            yield from self.note_lost(number, progress, goes_on=True)

    def note_lost(
        self, number: int, progress: Progress, goes_on: bool
    ) -> Iterator[tuple[int, Event]]:
        """Note that a worker was lost. `goes_on` is True if Dask is already repeating the work from
        the beginning."""
        progress.held.clear()
        progress.losses += 1
        if progress.losses >= MOST_LOSSES:
            self.client.cancel([progress.future])
            del self.open[number]
            yield number, Died(f"lost its worker {progress.losses} times")
        elif progress.released or not goes_on:
            self.client.cancel([progress.future])
            work = progress.work
            if isinstance(work, Resumable) and progress.released:
                work = work.behind(progress.released)
            rest = self.submit(number, work)
            rest.losses = progress.losses
            self.open[number] = rest

    def note_broken(self) -> Iterator[tuple[int, Event]]:
        """Handle tasks that Dask gave up because they lost too many workers, or because no worker
        can run them."""
        from distributed import KilledWorker

        for number, progress in list(self.open.items()):
            status = progress.future.status
            if status == "cancelled":
                raise BadInput("the scheduler was lost, or it cancelled the run")
            if status == "finished" and progress.is_over:  # the last message should have arrived
                yield from self.note_lost(number, progress, goes_on=False)
            elif status == "error":
                error = progress.future.exception()
                if isinstance(error, KilledWorker):
                    yield from self.note_lost(number, progress, goes_on=False)
                else:
                    del self.open[number]
                    yield number, Refused(f"a worker of the cluster cannot work: {error}")
            progress.is_over = status == "finished"
