"""Work side by side: processes that do not take the processors away from each other."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.managers import SyncManager
from secrets import token_hex
from tempfile import TemporaryDirectory
from threading import Thread, current_thread, main_thread
from typing import Any, TypeVar

from harness.allocator import keep_freed_memory

BLAS = "OPENBLAS_NUM_THREADS"
TEMPORARY = "TMPDIR"
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Part = TypeVar("Part")
Result = TypeVar("Result")


class Pool(ProcessPoolExecutor):
    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        with interrupts_later():  # it may start a process
            return super().submit(*args, **kwargs)


@contextmanager
def interrupts_later() -> Iterator[None]:
    """For the start of a process. Interrupted in the middle, it would die of what it does not get
    any more, and say so in a traceback; and until it has taken up `watch_parent` it would be
    interrupted itself. A blocked signal stays blocked in what is started: SIGTERM, by which a pool
    ends its processes, only waits.
    """
    if current_thread() is not main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in ENDS}
    for number in (number for number, handler in before.items() if callable(handler)):
        signal.signal(number, lambda number, _: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


@contextmanager
def processes(jobs: int) -> Iterator[Pool]:
    """Fresh ones, not forks: a fork would inherit locks of threads that it does not have.

    Each multiplies matrices with one thread: with one for every processor in each process they
    wait for each other, and small models take several times as long. A user's own choice stays.

    Whoever leaves with an exception does not wait for work that may take hours: it is killed. What
    it has in temporary folders lies in one of ours, which is then removed.
    """
    others = set(active_children())
    blas = os.environ.get(BLAS, "1")  # read when a process loads numpy
    with (
        TemporaryDirectory(prefix="lockstep-") as folder,
        variables({BLAS: blas, TEMPORARY: folder}),
        Pool(jobs, mp_context=get_context("spawn"), initializer=begin) as pool,
    ):
        try:
            yield pool
        except BaseException:
            for child in set(active_children()) - others:
                child.kill()
            raise


def as_done(work: Callable[[Part], Result], parts: Sequence[Part], jobs: int) -> Iterator[Result]:
    """Of each part; with several jobs the first that is done comes first."""
    if jobs == 1:
        yield from map(work, parts)
        return
    with processes(jobs) as pool:
        for done in as_completed([pool.submit(work, part) for part in parts]):
            yield done.result()


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Of the environment that processes inherit."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def shared() -> Iterator[SyncManager]:
    """What makes queues that several processes share. It is a process too, and ends with its
    parent like the others."""
    # by itself it would take a path in TMPDIR, which may be longer than a socket's name can be
    name = f"\0lockstep-{os.getpid()}-{token_hex(8)}" if sys.platform == "linux" else None
    manager = SyncManager(address=name, ctx=get_context("spawn"))
    with interrupts_later():
        manager.start(watch_parent)
    with manager:
        yield manager


def begin() -> None:
    watch_parent()
    keep_freed_memory()


def watch_parent() -> None:
    """A process whose parent was killed would wait for work for ever, and nobody would see it.

    An interrupt from a terminal goes to every process of the group, but what to do is the parent's.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def killed_by(number: int) -> str:
    """In words; real-time signals have no names."""
    try:
        return f"was killed by {signal.Signals(number).name}"
    except ValueError:
        return f"was killed by signal {number}"
