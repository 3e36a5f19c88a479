"""Settings of glibc's allocator, so that freeing and allocating arrays again causes no page faults.

Our products process a matrix in groups of rows, each with arrays of a few megabytes. By default
glibc returns such memory to the system when it is freed. The next arrays then cause a page fault
for each page, which took four fifths of the time of a product with one token.
"""

import ctypes
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # constants of malloc.h
KEPT = 64 << 20  # free bytes at the end of the heap that are kept
MAPPED = 32 << 20  # bytes of an array that is mapped separately, and returned at once


def keep_freed_memory() -> None:
    """Make the allocator of this process and its forks keep freed memory. C libraries other than
    glibc have no such setting and need none."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT)
        libc.mallopt(M_MMAP_THRESHOLD, MAPPED)
