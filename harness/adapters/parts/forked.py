"""Forked readers of many files, for a parser that may die. One process reads many files, and a
death costs only one new process.

The caller, which is a worker, forks. The child writes into shared memory which file it is about to
read, reads the file, and writes the result there. If it dies, the file is known, and the next child
continues after it. Starting a child takes some milliseconds, and starting a new worker takes a
second.
"""

import ctypes
import faulthandler
import mmap
import os
import resource
import signal
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lockstep.harness.adapters.parts.parsing import (
    CRASHED,
    ENDINGS,
    HUNG,
    NUMBER,
    SPARE_MEMORY,
    CostLimits,
    Row,
    answer_of,
)
from lockstep.harness.processes.side_by_side import killed_by

ROW = struct.Struct("<BQq")
# number of the current file, and at the end the number of files; or STOPPED
HEAD = struct.Struct("<q")
STOPPED = -2  # minus the number of the last file: a fresh process must read the rest
REASON = 400  # bytes of a parser's own message, which is kept only if few files are parsed
FEW = 64
PR_SET_PDEATHSIG = 1  # a constant of linux/prctl.h
# factor on the limit of processor time; a file that takes so long by the clock is taken to hang
STALLED = 60
LIMITS = CostLimits()  # the memory of the child before the file does not count
ENDS_OF_TIME = (signal.SIGPROF, signal.SIGALRM)
LAST_WORDS = 2000  # bytes of the log that are kept
Read = Callable[[bytes], tuple[str, int, str]]  # returns ending, digest, reason


class MemoryFile:
    """A file in memory that a parser can open by a path."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.path = f"/proc/self/fd/{descriptor}"

    def holding(self, raw: bytes) -> bytes:
        """Write the bytes to the file, and return its path."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, raw, 0)
        return self.path.encode()


@contextmanager
def in_memory_file() -> Iterator[MemoryFile]:
    descriptor = os.memfd_create("file.gguf")
    try:
        yield MemoryFile(descriptor)
    finally:
        os.close(descriptor)


class Results:
    """Memory that the parent and the child share, with the result for each file."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.reason = REASON if n <= FEW else 0
        self.step = ROW.size + self.reason
        self.memory = mmap.mmap(-1, HEAD.size + self.step * n)

    def place(self, at: int) -> int:
        return HEAD.size + self.step * at

    def begin(self, at: int) -> None:
        HEAD.pack_into(self.memory, 0, at)

    def current(self) -> int:
        return int(HEAD.unpack_from(self.memory, 0)[0])

    def put(self, at: int, ending: str, digest: int, peak: int, reason: str = "") -> None:
        ROW.pack_into(self.memory, self.place(at), NUMBER[ending], digest, peak)
        if self.reason and reason:
            start, raw = self.place(at) + ROW.size, reason.encode()[: self.reason]
            self.memory[start : start + len(raw)] = raw

    def rows(self) -> list[Row]:
        found = [ROW.unpack_from(self.memory, self.place(i)) for i in range(self.n)]
        return [(ENDINGS[ending], digest, peak) for ending, digest, peak in found]

    def reasons(self) -> dict[int, str]:
        found = {}
        for at in range(self.n if self.reason else 0):
            start = self.place(at) + ROW.size
            raw = self.memory[start : start + self.reason].rstrip(b"\0")
            if raw:
                found[at] = raw.decode(errors="replace")
        return found


def parse_forked(read: Read, files: Sequence[bytes], limits: CostLimits = LIMITS) -> dict[str, Any]:
    """Read the files in forks, and return one answer about all of them."""
    results, words, start = Results(len(files)), {}, 0
    while start < len(files):
        results.begin(start)
        log = os.memfd_create("log")
        pid = os.fork()
        if pid == 0:
            in_the_child(read, files, start, results, log, limits)
        _, status = os.waitpid(pid, 0)
        at = results.current()
        if 0 <= at < len(files):
            words[at] = end_of(status, log)
            hung = os.WIFSIGNALED(status) and os.WTERMSIG(status) in ENDS_OF_TIME
            results.put(at, HUNG if hung else CRASHED, 0, -1)
        os.close(log)
        start = at + 1 if at >= 0 else STOPPED - at + 1
    return answer_of(results.rows(), results.reasons() | words)


def end_of(status: int, log: int) -> str:
    """Describe how a child ended, with its last lines of output."""
    size = os.lseek(log, 0, os.SEEK_END)
    said = os.pread(log, LAST_WORDS, max(0, size - LAST_WORDS)).decode(errors="replace")
    how = f"exited with status {os.waitstatus_to_exitcode(status)}"
    if os.WIFSIGNALED(status):
        how = killed_by(os.WTERMSIG(status))
    return "; ".join([how, *(line.strip() for line in said.splitlines()[-3:] if line.strip())])


def in_the_child(
    read: Read,
    files: Sequence[bytes],
    start: int,
    results: Results,
    log: int,
    limits: CostLimits,
) -> None:
    """Read files until one kills the process, or needs so much memory that the next file needs a
    new process."""
    status = 1
    try:
        prepare(log)
        born, before, end = data_bytes(), peak_bytes(), len(files)
        for at in range(start, len(files)):
            results.begin(at)
            limit(limits, len(files[at]), born)
            ending, digest, reason = read(files[at])
            peak = peak_bytes() - before
            results.put(at, ending, digest, peak, reason)
            if peak > SPARE_MEMORY and at + 1 < len(files):
                end = STOPPED - at
                break
            before += peak
        results.begin(end)
        status = 0
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


def limit(limits: CostLimits, size: int, born: int) -> None:
    """Set the limits for the next file. born: the data bytes of the process before it read any
    file."""
    seconds = limits.seconds_for(size)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, STALLED * seconds)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = born + limits.memory_for(size)
    soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def prepare(log: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    faulthandler.disable()
    for number in ENDS_OF_TIME:
        signal.signal(number, signal.SIG_DFL)
    os.dup2(log, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def data_bytes() -> int:
    """Return the data size of this process in bytes, as RLIMIT_DATA counts it."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[5]) * resource.getpagesize()


def peak_bytes() -> int:
    """Return the largest amount of memory that this process has used, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
