"""Work in pieces on all processors, for compiled code and BLAS, which release Python's lock."""

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

Piece = TypeVar("Piece")
MOST = 8  # maximum number of threads, because pieces are small and share the memory's bandwidth
# by process, because a fork lacks the threads of its parent
POOLS: dict[int, ThreadPoolExecutor] = {}
BESIDE: set[int] = set()  # processes that compute while their parents do


def processors() -> int:
    """Return the number of processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def beside_parent() -> None:
    """Mark this process as a fork, which uses only half of the processors: its parent uses the
    others.
    """
    BESIDE.add(os.getpid())


def each(work: Callable[[Piece], None], pieces: Sequence[Piece]) -> None:
    """Call work(piece) for all pieces, in any order. No two pieces may write to the same place.

    An exception is raised once the pieces that other threads have begun are finished.
    """
    if len(pieces) == 1:  # a small product costs less than the rest of this function
        work(pieces[0])
        return
    left = deque(pieces)
    free = processors() // (2 if os.getpid() in BESIDE else 1)
    helpers = max(1, min(MOST, free, len(pieces))) - 1

    def take() -> None:
        while left:
            try:
                piece = left.popleft()
            except IndexError:  # another thread took the last piece
                return
            work(piece)

    def take_quietly() -> None:
        with np.errstate(all="ignore"):  # each thread has its own error state
            take()

    others = [pool().submit(take_quietly) for _ in range(helpers)]
    try:
        take()
    finally:
        left.clear()
        for other in others:
            other.result()


def pool() -> ThreadPoolExecutor:
    found = POOLS.get(os.getpid())
    if found is None:
        POOLS.clear()
        found = POOLS[os.getpid()] = ThreadPoolExecutor(MOST - 1, "products")
    return found
