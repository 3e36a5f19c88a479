"""Limits for an engine's process: it dies with its parent, its memory is limited, and no descendant
outlives it.

This module imports almost nothing, because it also runs as a program, the keeper of an engine:
`python -I -S limits.py PARENT BYTES COMMAND...` (BYTES 0: no limit). The keeper starts the command,
and ends with the command's exit status. When the command, the keeper (by SIGTERM) or PARENT ends,
the keeper kills the command with all descendants. The kernel makes the keeper the parent of orphans
in any process group.
"""

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NoReturn

MEMORY = 8 << 30  # default limit of an engine's memory in bytes
# factor on the size of the file: weights of four bits need eight times as much in F32, twice
DECODED = 16
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # constants of linux/prctl.h
WAKE = (signal.SIGCHLD, signal.SIGTERM)  # signals for which a keeper waits
KILL_SECONDS = 5.0  # time for the kernel to end killed processes; a process may hang in a driver


def die_with(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent ends, even during a C call.

    For the kernel, the parent is the thread that started this process. Therefore this thread must
    live longer than the process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, by, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent died before its worker had started")


def limit_memory(limit: int | None) -> None:
    """Limit the private memory. The pages of a memory-mapped model do not count.

    RLIMIT_AS would count these pages, even twice with some loaders. Only Linux counts anonymous
    mappings under RLIMIT_DATA (setrlimit(2)). On other systems at most the heap is limited.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def room_for(size: int, limit: int) -> int:
    """Return the memory limit for an engine that loads a model of this size. The result is `limit`,
    or more if the file and all its decoded weights need more memory, but at most the machine's
    memory."""
    return max(limit, min(memory_of_machine(), DECODED * size))


def memory_of_machine() -> int:
    """Return the machine's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parent, limit, *command = sys.argv[1:]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WAKE)
    die_with(int(parent), signal.SIGTERM)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    keeper = os.getpid()
    engine = os.fork()
    if not engine:
        os.setsid()  # so that signals to the engine's group do not reach the keeper
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        die_with(keeper)
        limit_memory(int(limit) or None)
        os.execvp(command[0], command)  # limits are inherited
    limit_memory(None)
    close_inherited()
    status = status_at_end(engine)
    kill_descendants()
    end_like(status)


def close_inherited() -> None:
    """Close the connections that the engine inherits, so that it notices when another side closes.
    Its log stays open."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def status_at_end(engine: int) -> int:
    """Wait for the end of the engine, and return its status. On SIGTERM, return at once, with
    SIGKILL as the status."""
    while signal.sigwait(WAKE) != signal.SIGTERM:
        for pid, status in ended_children():
            if pid == engine:
                return status
    return int(signal.SIGKILL)


def ended_children() -> Iterator[tuple[int, int]]:
    """Reap the children that have ended, and yield the id and the status of each. Raises
    ChildProcessError if no child is left."""
    while (found := os.waitpid(-1, os.WNOHANG))[0]:
        yield found


def kill_descendants() -> None:
    """Kill descendants until none is left. An orphan becomes a child of this process."""
    deadline = time.monotonic() + KILL_SECONDS
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            for _ in ended_children():
                pass
            for pid in children():
                with suppress(OSError):  # it has ended, or belongs to another user
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)  # a short wait while the kernel ends them
        os.write(2, f"could not end these processes: {children()}\n".encode())


def children() -> list[int]:
    """Return the ids of this process's children. This function searches /proc, because some kernels
    lack /proc/PID/task/TID/children."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                found.append(int(name))
    return found


def end_like(status: int) -> NoReturn:
    """End this process with the same status as another process."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (-code,))
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
