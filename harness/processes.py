"""Work side by side: processes that do not take the processors away from each other."""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from threading import Thread

BLAS = "OPENBLAS_NUM_THREADS"


@contextmanager
def processes(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Fresh ones, not forks: a fork would inherit locks of threads that it does not have.

    Each multiplies matrices with one thread: with one for every processor in each process they
    wait for each other, and small models take several times as long. A user's own choice stays.
    """
    before = os.environ.get(BLAS)
    os.environ.setdefault(BLAS, "1")  # read when a process loads numpy
    try:
        with ProcessPoolExecutor(
            jobs, mp_context=get_context("spawn"), initializer=watch_parent
        ) as pool:
            yield pool
    finally:
        if before is None:
            os.environ.pop(BLAS, None)


def watch_parent() -> None:
    """A process whose parent was killed would wait for work for ever, and nobody would see it."""
    Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
