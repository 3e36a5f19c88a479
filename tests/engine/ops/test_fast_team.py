"""Threads that share a kernel's work: every piece is done once, whatever threads are awake."""

import os
import threading
import time
from typing import Any

import numpy as np
import pytest

from lockstep.engine.kernels.compiled import compile_kernel
from lockstep.engine.ops.fast.team import Team, team


@compile_kernel
def mark(seen: Any, start: int, stop: int) -> None:
    for i in range(start, stop):
        seen[i] += 1


@compile_kernel
def fail(seen: Any, start: int, stop: int) -> None:
    if start > 0:
        raise ValueError("no")


def test_each_piece_is_done_once_by_any_thread() -> None:
    members = Team()
    for pause in (0.0, 0.3, 0.0, 0.01):  # some pauses are long enough for the threads to sleep
        time.sleep(pause)
        for n in (1, 2, 50, 1000):
            seen = np.zeros(n, np.int64)
            members.share(mark, (seen,), n, 3)
            assert (seen == 1).all()


def test_several_callers_at_once_get_their_own_answers() -> None:
    members = Team()
    found = [np.zeros(997, np.int64) for _ in range(4)]

    def ask(seen: Any) -> None:
        for _ in range(50):
            members.share(mark, (seen,), len(seen), 2)

    threads = [threading.Thread(target=ask, args=(seen,)) for seen in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((seen == 50).all() for seen in found)


def test_arguments_of_another_type_compile_another_kernel() -> None:
    members = Team()
    for kind in (np.int64, np.float32, np.int64):
        seen = np.zeros(100, kind)
        members.share(mark, (seen,), 100, 1)
        assert (seen == 1).all()


def test_fault_in_a_piece_reaches_the_caller_and_the_next_job_runs() -> None:
    members, seen = Team(), np.zeros(100, np.int64)
    with pytest.raises(MemoryError, match="fail"):
        members.share(fail, (seen,), 100, 1)
    members.share(mark, (seen,), 100, 1)
    assert (seen == 1).all()


def test_fork_has_its_own_team() -> None:
    before = team()
    before.share(mark, (np.zeros(100, np.int64),), 100, 1)
    child = os.fork()
    if child == 0:
        seen = np.zeros(100, np.int64)
        team().share(mark, (seen,), 100, 1)
        os._exit(0 if team() is not before and (seen == 1).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert team() is before
