"""Limits of an engine's process: it dies with its parent, and its memory is bounded.

Imports next to nothing, because it also runs as a program that puts itself under both and becomes
the engine: `python -I -S limits.py PARENT BYTES COMMAND...` (BYTES 0: no bound).
"""

import ctypes
import os
import resource
import signal
import sys

MEMORY = 8 << 30  # bytes that an engine may use, if nobody says otherwise
DECODED = 16  # times its file: as F32 the weights take eight times what they do in four bits, twice
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with(parent: int) -> None:
    """Have the kernel kill this process with its parent, even in the middle of a C call.

    The kernel means the thread that started us: a runner belongs to a thread that outlives it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent died before its worker had started")


def limit_memory(limit: int | None) -> None:
    """Bound the private memory; the pages of a memory-mapped model do not count.

    RLIMIT_AS would count them, and twice with some loaders. Only Linux counts anonymous mappings
    under RLIMIT_DATA (setrlimit(2)); elsewhere this bounds the heap at most.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def room_for(size: int, limit: int) -> int:
    """The limit of an engine that loads a model file of so many bytes: it may decode all weights
    as it loads them, and keep both; no more than the machine has, or `limit`."""
    return max(limit, min(memory_of_machine(), DECODED * size))


def memory_of_machine() -> int:
    """In bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parent, limit, *command = sys.argv[1:]
    die_with(int(parent))
    limit_memory(int(limit) or None)
    os.execvp(command[0], command)  # both limits stay


if __name__ == "__main__":
    main()
