"""Helpers for processes that run in parallel without competing for processors."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from threading import Thread, current_thread, main_thread
from typing import TypeVar

BLAS = "OPENBLAS_NUM_THREADS"
TEMPORARY = "TMPDIR"
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Part = TypeVar("Part")
Result = TypeVar("Result")


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Delay interrupts while a process starts. An interrupt during the start would end the new
    process with a traceback, because it ignores interrupts only after `watch_parent`. SIGTERM is
    only delayed, not blocked: the child would inherit the block, and a pool ends its processes with
    SIGTERM."""
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


def watch_parent() -> None:
    """End this process when its parent ends; otherwise it would wait for work for ever. Ignore
    interrupts from a terminal: they reach the whole process group, but only the parent should
    react."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def killed_by(number: int) -> str:
    return f"was killed by {signal_name(number)}"


def signal_name(number: int) -> str:
    """Return a name such as SIGABRT. Real-time signals have no name, so return their number as
    text."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
