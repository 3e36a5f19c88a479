"""glibc's allocator, set so that freed and reallocated arrays do not cause page faults.

Our products go through a matrix in runs of rows, a few megabytes of arrays each. glibc gives such
an amount back to the system when it is freed, and the next arrays are taken from it anew, page by
page: of a product with one token that was four fifths of the time.
"""

import ctypes
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT = 64 << 20  # bytes that are free at the end of the heap before they are given back
MAPPED = 32 << 20  # bytes of one array that is mapped apart, and goes back at once


def keep_freed_memory() -> None:
    """Keep memory that this process and its forks free. Other C libraries have no such knob and
    need none."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT)
        libc.mallopt(M_MMAP_THRESHOLD, MAPPED)
