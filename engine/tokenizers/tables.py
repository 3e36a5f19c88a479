"""Lookup of texts for compiled code: finds the value of a slice of a text.

The prefixes of a text are hashed once. So a lookup of any slice costs only a comparison of bytes.
Kernels take arrays instead of tuples of arrays, for which numba would count references at each
call.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from lockstep.engine.kernels.compiled import Function, compile_kernel, source_stamp

U8 = NDArray[np.uint8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

NONE = -1  # no value or no neighbour

# arbitrary odd numbers of 64 bits; the choice does not change results
BASE = np.uint64(0x9E3779B97F4A7C15)
SPREAD = np.uint64(0xD6E8FEB86659FD93)
ONE, HALF = np.uint64(1), np.uint64(32)
FREE, TAKEN = np.uint8(0), np.uint8(0x80)
JOINTS = 1 << 18
TOP = np.uint64(64 - 18)
# columns of rows: hash, offset in the blob, sizes of both parts
KEY, START, SIZES, VALUE = range(4)

STAMP = source_stamp(__file__)


def kernel(function: Function) -> Function:
    """Compile at the first call; the stored code is valid until this file or the function's file
    changes.
    """
    return cast(Function, compile_kernel(function, STAMP, nogil=True))


def inline_part(function: Function) -> Function:
    """Return a function that is inlined into kernels: a call would cost more than the function's
    work."""
    return cast(Function, njit(inline="always")(function))


class Table(NamedTuple):
    """Texts, each with a value. A text is found by its bytes and the place where it is split."""

    # (a power of two,) bits of the hash, or FREE; most missing texts are recognised by these
    tags: U8
    rows: I64  # (the same number, 4)
    blob: U8
    powers: U64  # powers of BASE, up to the length of the longest text
    joints: U8  # (JOINTS / 8,) bits, by the hash of two adjacent characters that occur in a text


def table_of(texts: Iterable[bytes], values: Iterable[int]) -> Table:
    """Build a table of unsplit texts; of equal texts, the first is used."""
    numbers = np.fromiter(values, np.int32)
    blob, starts = join_texts(list(texts))
    return fill_table(blob, starts, np.zeros_like(numbers), numbers)


def table_of_merges(merges: Sequence[bytes]) -> Table:
    """Build a table of `left right` with ranks; lines without exactly two texts are skipped."""
    blob, starts, splits = halves(*join_texts(merges))
    return fill_table(blob, starts, splits, np.arange(len(merges), dtype=np.int32))


def join_texts(texts: Sequence[bytes]) -> tuple[U8, I64]:
    """Return the concatenated texts, and the start of each text, followed by the end of the last
    text.
    """
    starts = np.fromiter(accumulate(map(len, texts), initial=0), np.int64, len(texts) + 1)
    return np.frombuffer(b"".join(texts) or b"\0", np.uint8), starts


def fill_table(blob: U8, starts: I64, splits: I32, values: I32) -> Table:
    longest = int(np.diff(starts).max(initial=0))
    n_slots = 1 << (2 * len(values)).bit_length()
    tags, rows = np.full(n_slots, FREE, np.uint8), np.zeros((n_slots, 4), np.int64)
    powers = np.cumprod(np.r_[ONE, np.full(max(longest, 8), BASE)], dtype=np.uint64)
    joints = np.zeros(JOINTS // 8, np.uint8)
    fill(tags, rows, blob, starts, splits, values)
    join(joints, blob, starts)
    return Table(tags, rows, blob, powers, joints)


class Needles:
    """Texts to search for in other texts, all at once."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.table = table_of(texts, range(len(texts)))
        self.count = len(texts)
        pairs = sorted({(text[0], len(text)) for text in texts})
        # the sizes of texts that begin with byte b are sizes[edges[b]:edges[b + 1]]
        self.sizes = np.array([size for _, size in pairs], np.int64)
        self.edges = np.searchsorted([first for first, _ in pairs], np.arange(257))

    def present(self, text: bytes) -> list[int]:
        """Return the indices of the needles that occur in `text`."""
        if not text or not self.count:
            return []
        raw, found = np.frombuffer(text, np.uint8), np.zeros(self.count, np.bool_)
        look_for(raw, *self.table[:-1], self.sizes, self.edges, found)
        numbers: list[int] = np.flatnonzero(found).tolist()
        return numbers


# --- looking up -----------------------------------------------------------------------------------


@kernel
def hash_prefixes(text: U8) -> U64:
    """Return the hash of each prefix, the empty one first."""
    found = np.empty(len(text) + 1, np.uint64)
    found[0] = value = np.uint64(0)
    for i in range(len(text)):
        value = value * BASE + np.uint64(text[i]) + ONE
        found[i + 1] = value
    return found


@inline_part
def key_of(value: Any, split: int) -> Any:
    key = (value + np.uint64(split) * BASE) * SPREAD
    return (key ^ (key >> HALF)) * SPREAD


@inline_part
def slot_of(
    tags: U8, rows: I64, blob: U8, key: Any, text: U8, start: int, size: int, split: int
) -> Any:
    """Return the slot of a text, or the free slot for it."""
    tag, mask = np.uint8(key) | TAKEN, len(tags) - 1
    at = np.int64(key >> HALF) & mask
    while tags[at] != FREE:
        sizes = size << 32 | split
        if tags[at] == tag and rows[at, KEY] == np.int64(key) and rows[at, SIZES] == sizes:
            first, offset = rows[at, START], 0
            while offset < size and blob[first + offset] == text[start + offset]:
                offset += 1
            if offset == size:
                break
        at = (at + 1) & mask
    return at


@inline_part
def value_of(
    tags: U8, rows: I64, blob: U8, powers: U64, text: U8, hashes: U64, start: int, end: int,
    split: int,
) -> Any:  # fmt: skip
    """Return the value of a slice of the text, or NONE."""
    size = end - start
    if size >= len(powers):
        return NONE
    key = key_of(hashes[end] - hashes[start] * powers[size], split)
    at = slot_of(tags, rows, blob, key, text, start, size, split)
    return NONE if tags[at] == FREE else rows[at, VALUE]


@kernel
def fill(tags: U8, rows: I64, blob: U8, starts: I64, splits: I32, values: I32) -> None:
    for i in range(len(values)):
        start, end = starts[i], starts[i + 1]
        if start == end:
            continue
        value = np.uint64(0)
        for at in range(start, end):
            value = value * BASE + np.uint64(blob[at]) + ONE
        key = key_of(value, splits[i])
        at = slot_of(tags, rows, blob, key, blob, start, end - start, splits[i])
        if tags[at] == FREE:
            tags[at] = np.uint8(key) | TAKEN
            rows[at, KEY], rows[at, START] = np.int64(key), start
            rows[at, SIZES], rows[at, VALUE] = (end - start) << 32 | splits[i], values[i]


@kernel
def halves(blob: U8, starts: I64) -> Any:
    """Return the texts without their space; a text without exactly one space becomes empty."""
    left, ends, at = np.empty_like(blob), np.zeros_like(starts), 0
    splits = np.zeros(len(starts) - 1, np.int32)
    for i in range(len(splits)):
        first, last = starts[i], starts[i + 1] - 1
        spaces, place = 0, first
        for j in range(first, last + 1):
            if blob[j] == 0x20:
                spaces, place = spaces + 1, j
        if spaces == 1 and first < place < last:
            splits[i] = place - first
            for j in range(first, last + 1):
                if j != place:
                    left[at] = blob[j]
                    at += 1
        ends[i + 1] = at
    return left, ends, splits


@kernel
def look_for(
    text: U8, tags: U8, rows: I64, blob: U8, powers: U64, sizes: I64, edges: I64, found: Any
) -> None:
    hashes = hash_prefixes(text)
    for start in range(len(text)):
        for j in range(edges[text[start]], edges[text[start] + 1]):
            end = start + sizes[j]
            if end <= len(text):
                i = value_of(tags, rows, blob, powers, text, hashes, start, end, 0)
                if i != NONE:
                    found[i] = True


# --- characters -----------------------------------------------------------------------------------


@inline_part
def character_size(first: int) -> int:
    """Return the size of a character from its first byte; later bytes are not checked."""
    if first < 0xC0:
        return 1
    return 2 + (first >= 0xE0) + (first >= 0xF0)


@inline_part
def joint(value: Any) -> Any:
    """Return the byte and the bit for two neighbouring characters with that hash."""
    at = np.int64(key_of(value, 0) >> TOP)
    return at >> 3, 1 << (at & 7)


@kernel
def join(joints: U8, blob: U8, starts: I64) -> None:
    for i in range(len(starts) - 1):
        at, end = starts[i], starts[i + 1]
        middle = min(at + character_size(blob[at]), end)
        while middle < end:
            after = min(middle + character_size(blob[middle]), end)
            value = np.uint64(0)
            for j in range(at, after):
                value = value * BASE + np.uint64(blob[j]) + ONE
            place, bit = joint(value)
            joints[place] |= bit
            at, middle = middle, after
