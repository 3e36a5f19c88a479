"""Timing of decoders: code shared by the adapters with `time_dequantize`."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
from numpy.typing import NDArray

Piece = tuple[NDArray[np.uint8], NDArray[np.float32]]
Turn = tuple[float, float, int]  # start and end of a thread, and the number of its repetitions


def seconds_each(decode: Callable[[Piece], object], pieces: list[Piece], seconds: float) -> float:
    """Return the seconds per piece, while each thread decodes its own piece repeatedly. Threads
    wait for each other only at the start. Waiting after each piece would measure how fast the
    machine wakes a thread, which takes some 60 microseconds on a virtual machine."""
    together = Barrier(len(pieces))
    processors = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

    def turn(at: int) -> Turn:
        try:
            if processors and len(pieces) > 1:
                # pins this thread: two threads that start on one processor may stay there
                os.sched_setaffinity(0, {processors[at % len(processors)]})
            decode(pieces[at])  # a warm-up that is not measured
        except BaseException:
            together.abort()  # releases the threads that wait for this one
            raise
        together.wait()
        return repeat_work(lambda: decode(pieces[at]), seconds)

    with ThreadPoolExecutor(len(pieces)) as pool:
        futures = [pool.submit(turn, at) for at in range(len(pieces))]
    failed = [error for future in futures if (error := future.exception())]
    if failed:  # the error of the thread that failed, not the broken barriers of the others
        raise min(failed, key=lambda error: isinstance(error, RuntimeError))
    turns = [future.result() for future in futures]
    elapsed = max(ended for _, ended, _ in turns) - min(began for began, _, _ in turns)
    return elapsed / sum(count for _, _, count in turns)


def repeat_work(work: Callable[[], object], seconds: float) -> Turn:
    """Repeat the work until `seconds` have passed, at least once. Return the begin, the end, and
    the number of repetitions."""
    began, count = time.perf_counter(), 0
    while True:
        work()
        count += 1
        now = time.perf_counter()
        if now >= began + seconds:
            return began, now, count


def pieces_of(raw: NDArray[np.uint8], block: tuple[int, int], threads: int) -> list[Piece]:
    """Return for each thread a copy of the blocks, and room for their weights.

    block: (bytes, weights).
    """
    raw = np.ascontiguousarray(raw, np.uint8).reshape(-1)
    size = raw.size // block[0] * block[1]
    # written once with zeros, so that no page fault happens during the measurement
    return [(raw.copy(), np.zeros(size, np.float32)) for _ in range(threads)]
