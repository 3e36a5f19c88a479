"""Compiled merging of neighbouring pairs, the best pair first, for "llama" and "gpt2".

A symbol is stored as its start, because it ends where the next symbol starts.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import EngineError
from lockstep.engine.tokenizers.tables import (
    I32,
    I64,
    NONE,
    U8,
    U64,
    Table,
    character_size,
    hash_prefixes,
    inline_part,
    joint,
    kernel,
    value_of,
)

# bytes of a text, so that twice as many, if it is spelled out, have 32-bit numbers
LONGEST = 2**30 - 1
# mask for the number of a symbol in a key of the heap; the rank is in the higher bits
LEFT = 0xFFFFFFFF
NEVER = np.zeros(256, np.bool_)
PLAIN = np.full(256, NONE, np.int32)
# columns of symbols: first byte, neighbours (or the number of symbols), and the rank of the merge
# with the next symbol (or NONE, also for removed symbols)
BEGINS, BEFORE, AFTER, RANK = range(4)


class Merging(NamedTuple):
    """All data that decides how a text without special tokens becomes ids."""

    pairs: Table  # pair of symbols -> result and rank; the lowest rank is merged first
    by_split: bool  # True: the place of the cut matters
    tokens: Table  # symbols with ids
    spell: I32  # (256,) by byte of a symbol that is no token: its token; NONE if it is lost
    # (256,) by first byte: True if a word that is a token is not split
    whole: NDArray[np.bool_] = NEVER
    letters: I32 = PLAIN  # (256,) the character that stands for each byte, or NONE

    def ids(self, text: bytes, sizes: Sequence[int]) -> list[list[int]]:
        """Return the ids of each word of a text.

        sizes: lengths in characters; they may go beyond the end of the text.

        Raises EngineError if the text is too long.
        """
        if len(text) > LONGEST:
            raise EngineError(f"a text can have {LONGEST} bytes at most, got {len(text)}")
        raw = np.frombuffer(text, np.uint8)
        spelled, word_edges = spell(raw, np.array(sizes, np.int64), self.letters)
        tokens = self.tokens
        found, edges = merge_words(
            spelled, word_edges, *self.pairs, self.by_split, tokens.tags, tokens.rows, tokens.blob,
            tokens.powers, self.whole, self.spell
        )  # fmt: skip
        ids = found.tolist()
        return [ids[start:end] for start, end in pairwise(edges.tolist())]


@kernel
def spell(raw: U8, sizes: I64, letters: I32) -> Any:
    """Return the text with its bytes spelled as characters, and the word boundaries in bytes. A
    size beyond the end of the text is cut there."""
    text, edges = np.empty(2 * len(raw), np.uint8), np.zeros(len(sizes) + 1, np.int64)
    at, end = 0, 0
    for word in range(len(sizes)):
        for _ in range(sizes[word]):
            if at == len(raw):
                break
            for _ in range(min(character_size(raw[at]), len(raw) - at)):
                code = letters[raw[at]]
                if code < 0x80:
                    text[end] = raw[at] if code == NONE else code
                else:
                    text[end], text[end + 1] = 0xC0 | code >> 6, 0x80 | code & 0x3F
                    end += 1
                end += 1
                at += 1
        edges[word + 1] = end
    return text[:end], edges


@kernel
def cut(text: U8, hashes: U64, powers: U64, joints: U8, start: int, end: int, symbols: I32) -> int:
    """Store characters as symbols up to a pair that no merge contains; return their number.

    The place where it stops is stored as one more symbol. No merge crosses that place, so each
    merge works on little memory, which is faster.
    """
    count = 0
    while True:
        middle = min(start + character_size(text[start]), end)
        symbols[count, BEGINS] = start
        symbols[count, BEFORE], symbols[count, AFTER] = count - 1, count + 1
        count += 1
        if middle == end:
            break
        after = min(middle + character_size(text[middle]), end)
        place, bit = joint(hashes[after] - hashes[start] * powers[after - start])
        start = middle
        if not joints[place] & bit:
            break
    symbols[count, BEGINS] = middle
    return count


# --- merging --------------------------------------------------------------------------------------


@inline_part
def push(heap: I64, size: int, key: int) -> int:
    at = size
    while at and key < heap[(at - 1) >> 1]:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap[at] = key
    return size + 1


@inline_part
def drop_first(heap: I64, size: int) -> int:
    size -= 1
    key, at, child = heap[size], 0, 1
    while child < size:
        child += child + 1 < size and heap[child + 1] < heap[child]
        if key <= heap[child]:
            break
        heap[at] = heap[child]
        at, child = child, 2 * child + 1
    heap[at] = key
    return size


@kernel
def consider(
    tags: U8, rows: I64, blob: U8, powers: U64, by_split: bool, text: U8, hashes: U64, symbols: I32,
    count: int, left: Any, heap: I64, size: int,
) -> int:  # fmt: skip
    """Push a pair (a symbol and the next symbol) onto the heap if the pair can merge; return the
    heap's size.
    """
    right = symbols[left, AFTER]
    best = NONE
    if right < count:
        start, end = symbols[left, BEGINS], symbols[symbols[right, AFTER], BEGINS]
        split = symbols[right, BEGINS] - start if by_split else 0
        best = value_of(tags, rows, blob, powers, text, hashes, start, end, split)
    symbols[left, RANK] = best
    return size if best == NONE else push(heap, size, best << 32 | left)


@kernel
def merge(
    tags: U8, rows: I64, blob: U8, powers: U64, by_split: bool, text: U8, hashes: U64, symbols: I32,
    count: int, heap: I64,
) -> None:  # fmt: skip
    """Repeatedly merge the pair of lowest rank, or the leftmost of equal rank, until no pair has a
    rank.

    A pair that has changed since it was pushed onto the heap is recognised by its rank. If a
    changed pair has the same rank, the heap has two entries with one key, and it does not matter
    which of them is used.
    """
    rules = tags, rows, blob, powers, by_split, text, hashes, symbols, count
    size = 0
    for i in range(count):
        size = consider(*rules, i, heap, size)
    while size:
        best, left = heap[0] >> 32, heap[0] & LEFT
        size = drop_first(heap, size)
        if symbols[left, RANK] != best:
            continue
        right = symbols[left, AFTER]
        symbols[right, RANK] = NONE
        after = symbols[left, AFTER] = symbols[right, AFTER]
        if after < count:
            symbols[after, BEFORE] = left
        before = np.int64(symbols[left, BEFORE])
        if before != NONE:
            size = consider(*rules, before, heap, size)
        size = consider(*rules, left, heap, size)


@kernel
def write(
    ids: I32, n_ids: int, tags: U8, rows: I64, blob: U8, powers: U64, byte_ids: I32, text: U8,
    hashes: U64, symbols: I32, count: int,
) -> int:  # fmt: skip
    """Write the ids of symbols, or of their bytes; return the number of ids."""
    left = 0
    while left < count:
        start, end = symbols[left, BEGINS], symbols[symbols[left, AFTER], BEGINS]
        left = symbols[left, AFTER]
        token = value_of(tags, rows, blob, powers, text, hashes, start, end, 0)
        if token != NONE:
            ids[n_ids] = token
            n_ids += 1
            continue
        for i in range(start, end):
            spelled = byte_ids[text[i]]
            if spelled != NONE:
                ids[n_ids] = spelled
                n_ids += 1
    return n_ids


@kernel
def merge_words(
    text: U8, edges: I64, pair_tags: U8, pair_rows: I64, pair_blob: U8, pair_powers: U64,
    joints: U8, by_split: bool, tags: U8, rows: I64, blob: U8, powers: U64, whole: Any,
    byte_ids: I32,
) -> Any:  # fmt: skip
    """Return the ids of all words, and the boundaries between words."""
    hashes = hash_prefixes(text)
    longest = 0  # a loop, because numpy's functions compile ten times as long as the rest
    for word in range(len(edges) - 1):
        longest = max(longest, edges[word + 1] - edges[word])
    symbols = np.empty((longest + 1, 4), np.int32)
    heap = np.empty(2 * longest + 2, np.int64)  # each merge adds at most two pairs
    ids, ends, n_ids = np.empty(len(text), np.int32), np.zeros_like(edges), 0
    for word in range(len(edges) - 1):
        start, end = edges[word], edges[word + 1]
        if start < end and whole[text[start]]:
            token = value_of(tags, rows, blob, powers, text, hashes, start, end, 0)
            if token != NONE:
                ids[n_ids] = token
                n_ids += 1
                start = end
        while start < end:
            count = cut(text, hashes, pair_powers, joints, start, end, symbols)
            merge(pair_tags, pair_rows, pair_blob, pair_powers, by_split, text, hashes, symbols,
                  count, heap)  # fmt: skip
            n_ids = write(ids, n_ids, tags, rows, blob, powers, byte_ids, text, hashes, symbols,
                          count)  # fmt: skip
            start = np.int64(symbols[count, BEGINS])
        ends[word + 1] = n_ids
    return ids[:n_ids], ends
