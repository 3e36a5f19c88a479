"""Merging of tokens in plain Python, right or with one mistake.

Wrong engines and tests use it. Our own merging is compiled, and cannot be made wrong.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import accumulate, islice, pairwise

from lockstep.engine.tokenizers.llama import LlamaTokenizer
from lockstep.engine.tokenizers.utf8 import LENGTHS

Rank = Callable[[bytes, bytes], float | None]


def merge_parts(
    parts: list[bytes], rank: Rank, *, from_the_right: bool = False, careless: bool = False
) -> list[bytes]:
    """Join neighbours in order of their rank, the leftmost first for equal ranks. `from_the_right`
    takes the rightmost first. `careless` ignores that the left part of a pair no longer exists."""
    text, sizes = b"".join(parts), list(map(len, parts))
    starts = list(accumulate(sizes, initial=0))
    waiting: list[tuple[float, int, int, int]] = []  # rank, index, right index, bytes of both

    def part(i: int) -> bytes:
        return text[starts[i] : starts[i] + sizes[i]]

    def add(left: int, right: int) -> None:
        found = rank(part(left), part(right))
        if found is not None:
            place = -left if from_the_right else left
            heappush(waiting, (found, place, right, sizes[left] + sizes[right]))

    for right in range(1, len(parts)):
        add(right - 1, right)
    while waiting:
        best = heappop(waiting)
        left, right = abs(best[1]), best[2]
        there = sizes[right] and (sizes[left] or careless)
        if not there or sizes[left] + sizes[right] != best[3]:
            continue
        sizes[left], sizes[right] = best[3], 0
        before = [*islice((i for i in range(left - 1, -1, -1) if sizes[i]), 1)]
        after = [*islice((i for i in range(right, len(sizes)) if sizes[i]), 1)]
        for one, other in pairwise([*before, left, *after]):
            add(one, other)
    return [part(i) for i in range(len(sizes)) if sizes[i]]


def characters(text: bytes) -> list[bytes]:
    """Split a text into characters. The first byte of each character gives its length, and the
    bytes after it are not checked."""
    parts, at = [], 0
    while at < len(text):
        size = LENGTHS[text[at] >> 4]
        parts.append(text[at : at + size])
        at += size
    return parts


def ids(
    tokenizer: LlamaTokenizer, text: bytes, *, from_the_right: bool = False, careless: bool = False
) -> list[int]:
    """Return the ids of `tokenizer.segment`, or wrong ids if an option asks for a mistake."""
    known, scores = tokenizer.vocabulary.ids, tokenizer.vocabulary.scores

    def rank(left: bytes, right: bytes) -> float | None:
        token = known.get(left + right)
        return None if token is None else -scores[token]

    parts = merge_parts(characters(text), rank, from_the_right=from_the_right, careless=careless)
    return [token for part in parts for token in spell_symbol(tokenizer, part)]


def spell_symbol(tokenizer: LlamaTokenizer, symbol: bytes) -> list[int]:
    token = tokenizer.vocabulary.ids.get(symbol)
    return [tokenizer.byte_token(byte) for byte in symbol] if token is None else [token]
