"""Threads that stay alive and share the work of a kernel.

Waking a thread takes as long as a small product. So after a job each thread waits for the next job
for a while, in compiled code and without Python's lock. The caller never waits for a sleeping
thread: it does the remaining pieces itself.
"""

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import typeof

from lockstep.engine.kernels.atomic import (
    code,
    code_of,
    fetch_add,
    get,
    give_way,
    pause,
    piece_of,
    put,
    run,
)
from lockstep.engine.kernels.pointers import address_of
from lockstep.engine.kernels.stamped import kernel
from lockstep.engine.kernels.threads import MOST, processors

# indices of a job's numbers; numbers that threads write are in separate cache lines
APART = 8
OPEN, TICKET, HELPERS, FUNCTION, ARGUMENTS, N, PIECE, BUSY, FAILED, NEXT = range(0, 80, APART)
NUMBERS = NEXT + APART * (MOST + 1)  # one NEXT for each part
PIECES = 8  # for each thread: few enough to cost little, and enough so that no thread waits long
PATIENCE = 20_000  # iterations of about ten nanoseconds before a thread sleeps
HASTY = 1000
WRONG, FINE = -1, 0


@kernel
def work(
    box: Any, function: int, arguments: int, n: int, piece: int, parts: int, first: int
) -> None:
    """Do a worker's own part first, then other workers' parts. first: the number of the worker's
    own part.
    """
    for i in range(parts):
        part = (first + i) % parts
        stop = end_of(part, parts, n)
        while True:
            start = fetch_add(box, NEXT + APART * part, piece)
            if start >= stop:
                break
            if run(function, arguments, start, min(start + piece, stop)):
                put(box, FAILED, 1)


@kernel
def end_of(part: int, parts: int, n: int) -> int:
    return n * (part + 1) // parts


@kernel
def serve(box: Any, number: int, seen: int, patience: int) -> int:
    """Run jobs until no job comes for a while, and return the number of the last job."""
    waited = 0
    while waited < patience:
        ticket = get(box, TICKET)
        if ticket == seen:
            pause()
            waited += 1
            if waited > HASTY:
                give_way()
            continue
        seen, waited = ticket, 0
        if number < get(box, HELPERS):
            # from here on the caller waits for this thread, unless the job is closed
            fetch_add(box, BUSY, 1)
            if get(box, OPEN):
                function, given, n = get(box, FUNCTION), get(box, ARGUMENTS), get(box, N)
                parts = get(box, HELPERS) + 1
                work(box, function, given, n, get(box, PIECE), parts, number + 1)
            fetch_add(box, BUSY, -1)
    return seen


@kernel
def share(
    box: Any, kernel: int, kinds: int, arguments: Any, n: int, piece: int, helpers: int
) -> int:
    """Share the work of a kernel. Return WRONG if the kernel takes arguments of other types."""
    if code(arguments) != kinds:
        return WRONG
    function, given = piece_of(kernel, arguments)
    put(box, HELPERS, helpers)
    put(box, FUNCTION, function)
    put(box, ARGUMENTS, given)
    put(box, N, n)
    put(box, PIECE, piece)
    parts = helpers + 1
    for part in range(parts):
        put(box, NEXT + APART * part, end_of(part - 1, parts, n))
    put(box, FAILED, FINE)
    put(box, OPEN, 1)
    fetch_add(box, TICKET, 1)
    work(box, function, given, n, piece, parts, 0)
    put(box, OPEN, 0)
    waited = 0
    while get(box, BUSY):
        pause()
        waited += 1
        if waited > HASTY:  # another thread may need this processor
            give_way()
    failed: int = get(box, FAILED)
    return failed


class Team:
    """Threads of one process. Kernels are called with arguments and the range that they compute."""

    def __init__(self) -> None:
        self.most = min(processors() - 1, MOST)
        self.box = np.zeros(NUMBERS, np.int64)
        self.asked = threading.Lock()  # one caller at a time; another caller works alone
        self.asleep: list[threading.Lock] = []
        self.members = 0
        self.known: dict[Any, tuple[int, int]] = {}

    def share(
        self, kernel: Callable[..., None], args: tuple[Any, ...], n: int, helpers: int
    ) -> None:
        helpers = min(helpers, self.most, n - 1)
        if helpers < 1 or not self.asked.acquire(blocking=False):
            return kernel(*args, 0, n)
        try:
            self.wake(helpers)
            piece = max(1, n // (PIECES * (helpers + 1)))
            for _ in range(2):
                address, kinds = self.known.get(kernel, (0, 0))
                done = share(self.box, address, kinds, args, n, piece, helpers)
                if done != WRONG:
                    break
                self.learn(kernel, args)
        finally:
            self.asked.release()
        if done != FINE:
            raise MemoryError(f"{kernel.__name__} failed in a thread")
        return None

    def learn(self, kernel: Any, args: tuple[Any, ...]) -> None:
        kinds = tuple(typeof(arg) for arg in args)
        number = typeof(1)
        self.known[kernel] = address_of(kernel, *kinds, number, number), code_of(kinds)

    def wake(self, helpers: int) -> None:
        while self.asleep:
            self.asleep.pop().release()
        while self.members < helpers:
            threading.Thread(target=self.serve, args=(self.members,), daemon=True).start()
            self.members += 1

    def serve(self, number: int) -> None:
        seen = 0
        while True:
            seen = serve(self.box, number, seen, PATIENCE)
            sleep = threading.Lock()
            sleep.acquire()
            self.asleep.append(sleep)
            sleep.acquire()


TEAMS: dict[int, Team] = {}  # by process, because a fork lacks the threads of its parent


def team() -> Team:
    found = TEAMS.get(os.getpid())
    if found is None:
        TEAMS.clear()
        found = TEAMS[os.getpid()] = Team()
    return found
