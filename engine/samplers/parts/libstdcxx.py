"""The order in which libstdc++ leaves equal elements, and llama.cpp's 128 buckets on top of it.

std::sort is an introsort, and std::partial_sort uses a heap. Both are unstable, but give the same
order on every machine with that library. Another standard library gives another order, which is
right too. Elements are indices of `keys`; a larger key comes first.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.kernels.compiled import compile_kernel, source_stamp
from lockstep.engine.samplers.parts.candidates import F32, F

Places = NDArray[np.int64]
STAMP = source_stamp(__file__)
SMALL = 16  # number of elements that std::sort leaves to insertion sort
HEAP = 128  # number of candidates up to which llama.cpp uses a heap
# number of buckets, and the range of logits that they cover
BUCKETS, LOW, HIGH = 128, F(-10), F(10)
SCALE = F(BUCKETS) / (HIGH - LOW)
INT_END = 2147483648.0  # a larger float is no valid int, and becomes INT_MIN on x86


def kernel(function: Any) -> Any:
    return compile_kernel(function, STAMP)


@kernel
def sift(keys: F32, p: Places, first: int, hole: int, length: int, value: int) -> None:
    """Move the hole down to a leaf, and the value up from there, as in std::__adjust_heap."""
    top = hole
    second = hole
    while second < (length - 1) // 2:
        second = 2 * (second + 1)
        if keys[p[first + second]] > keys[p[first + second - 1]]:
            second -= 1
        p[first + hole] = p[first + second]
        hole = second
    if length % 2 == 0 and second == (length - 2) // 2:
        second = 2 * (second + 1)
        p[first + hole] = p[first + second - 1]
        hole = second - 1
    parent = (hole - 1) // 2
    while hole > top and keys[p[first + parent]] > keys[value]:
        p[first + hole] = p[first + parent]
        hole = parent
        parent = (hole - 1) // 2
    p[first + hole] = value


@kernel
def partial_sort(keys: F32, p: Places, first: int, middle: int, last: int) -> None:
    n = middle - first
    if n == 0:
        return
    if n >= 2:
        parent = (n - 2) // 2
        while True:
            sift(keys, p, first, parent, n, p[first + parent])
            if parent == 0:
                break
            parent -= 1
    for i in range(middle, last):
        if keys[p[i]] > keys[p[first]]:
            value = p[i]
            p[i] = p[first]
            sift(keys, p, first, 0, n, value)
    while n > 1:
        n -= 1
        value = p[first + n]
        p[first + n] = p[first]
        sift(keys, p, first, 0, n, value)


@kernel
def insert_linearly(keys: F32, p: Places, place: int) -> None:
    value = p[place]
    before = place - 1
    while keys[value] > keys[p[before]]:
        p[place] = p[before]
        place = before
        before -= 1
    p[place] = value


@kernel
def insert_all(keys: F32, p: Places, first: int, last: int) -> None:
    for i in range(first + 1, last):
        if keys[p[i]] > keys[p[first]]:
            value = p[i]
            for j in range(i, first, -1):
                p[j] = p[j - 1]
            p[first] = value
        else:
            insert_linearly(keys, p, i)


@kernel
def median_first(keys: F32, p: Places, first: int, last: int) -> None:
    """Swap the median of three elements into the first place."""
    a, b, c = first + 1, first + (last - first) // 2, last - 1
    if keys[p[a]] > keys[p[b]]:
        best = b if keys[p[b]] > keys[p[c]] else c if keys[p[a]] > keys[p[c]] else a
    else:
        best = a if keys[p[a]] > keys[p[c]] else c if keys[p[b]] > keys[p[c]] else b
    p[first], p[best] = p[best], p[first]


@kernel
def introsort(keys: F32, p: Places, first: int, last: int, depth: int) -> None:
    while last - first > SMALL:
        if depth == 0:
            partial_sort(keys, p, first, last, last)
            return
        depth -= 1
        median_first(keys, p, first, last)
        low, high = first + 1, last
        while True:
            while keys[p[low]] > keys[p[first]]:
                low += 1
            high -= 1
            while keys[p[first]] > keys[p[high]]:
                high -= 1
            if not low < high:
                break
            p[low], p[high] = p[high], p[low]
            low += 1
        introsort(keys, p, low, last, depth)
        last = low


@kernel
def sort(keys: F32, p: Places, first: int, last: int) -> None:
    n = last - first
    if n == 0:
        return
    depth = 0
    while (n >> (depth + 1)) > 0:
        depth += 1
    introsort(keys, p, first, last, 2 * depth)
    insert_all(keys, p, first, min(last, first + SMALL))
    for i in range(first + SMALL, last):
        insert_linearly(keys, p, i)


def bucket_numbers(logits: F32, overflows: bool) -> NDArray[np.int64]:
    """Return the bucket of each logit. overflows: True if values beyond an int go into the lowest
    bucket.
    """
    place = SCALE * logits - SCALE * LOW
    inside = np.abs(place) < INT_END
    beyond = -INT_END if overflows else np.where(place > 0, INT_END, -INT_END)
    whole = np.where(inside, np.trunc(np.where(inside, place, 0)), beyond)
    return np.asarray(np.clip(whole, 0, BUCKETS - 1), np.int64)


def bucket_order(logits: F32, k: int, *, overflows: bool = True) -> Places:
    """Return all indices in the upper buckets. The lowest of these buckets is sorted only up to
    place k.
    """
    bucket = bucket_numbers(logits, overflows)
    counts = np.bincount(bucket, minlength=BUCKETS)
    enough = np.flatnonzero(np.cumsum(counts[::-1]) >= k)
    low = BUCKETS - 1 - int(enough[0]) if len(enough) else 0
    held = np.flatnonzero(bucket >= low)
    order = held[np.argsort(-bucket[held], kind="stable")].astype(np.int64)
    at = 0
    for n in counts[:low:-1].tolist():
        sort(logits, order, at, at + n)
        at += n
    partial_sort(logits, order, at, k, at + int(counts[low]))
    return order


def top_order(logits: F32, k: int, *, overflows: bool = True) -> Places:
    """Return the indices of the k largest, in llama.cpp's order."""
    if k > HEAP:
        return bucket_order(logits, k, overflows=overflows)[:k]
    order = np.arange(len(logits), dtype=np.int64)
    partial_sort(logits, order, 0, k, len(logits))
    return order[:k]


def sort_all(keys: F32) -> Places:
    order = np.arange(len(keys), dtype=np.int64)
    sort(keys, order, 0, len(keys))
    return order
