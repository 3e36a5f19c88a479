"""Work side by side: processes that do not take the processors away from each other."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.managers import SyncManager
from threading import Thread, current_thread, main_thread
from typing import Any

BLAS = "OPENBLAS_NUM_THREADS"


class Pool(ProcessPoolExecutor):
    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        with interrupts_later():  # it may start a process
            return super().submit(*args, **kwargs)


@contextmanager
def interrupts_later() -> Iterator[None]:
    """For the start of a process. Interrupted in the middle, it would die of what it does not get
    any more, and say so in a traceback; and until it has taken up `watch_parent` it would be
    interrupted itself. A blocked signal stays blocked in what is started.
    """
    if current_thread() is not main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


@contextmanager
def processes(jobs: int) -> Iterator[Pool]:
    """Fresh ones, not forks: a fork would inherit locks of threads that it does not have.

    Each multiplies matrices with one thread: with one for every processor in each process they
    wait for each other, and small models take several times as long. A user's own choice stays.

    Whoever leaves with an exception does not wait for work that may take hours: it is killed.
    """
    before = os.environ.get(BLAS)
    others = set(active_children())
    os.environ.setdefault(BLAS, "1")  # read when a process loads numpy
    try:
        with Pool(jobs, mp_context=get_context("spawn"), initializer=watch_parent) as pool:
            try:
                yield pool
            except BaseException:
                for child in set(active_children()) - others:
                    child.kill()
                raise
    finally:
        if before is None:
            os.environ.pop(BLAS, None)


@contextmanager
def shared() -> Iterator[SyncManager]:
    """What makes queues that several processes share. It is a process too, and ends with its
    parent like the others."""
    manager = SyncManager(ctx=get_context("spawn"))
    with interrupts_later():
        manager.start(watch_parent)
    with manager:
        yield manager


def watch_parent() -> None:
    """A process whose parent was killed would wait for work for ever, and nobody would see it.

    An interrupt from a terminal goes to every process of the group, but what to do is the parent's.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
