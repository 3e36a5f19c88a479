"""Shrinks an input that shows a difference, with many inputs in one question."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lockstep.harness.fuzzers.shrink import shrink

Input = Any  # bytes or a tuple of ids, which can be cut and joined
Wrong = Callable[[Sequence[Input]], Sequence[bool]]

ROUNDS = 60  # questions; few are needed, because each step makes the input shorter or simpler
SIMPLER = (b"a", b" ", b"0", b".")  # replacements for a character, the simplest first


def shrink_input(given: Input, wrong: Wrong) -> Input:
    """Return the smallest input found for which `wrong` is true. It must be true for `given`.

    `wrong` judges a list of inputs at once, because an engine in another process answers a list
    almost as fast as one input.
    """
    makers = (without_chunks, simplify_input)
    return shrink(given, makers, wrong, order, budget=ROUNDS, cost=lambda _: 1, at_once=2)


def order(given: Input) -> tuple[int, int, Input]:
    """Return a measure that orders inputs by length, and then by the number of foreign
    characters."""
    foreign = sum(byte not in b"a 0." for byte in given) if isinstance(given, bytes) else 0
    return len(given), foreign, given


def without_chunks(given: Input) -> Iterator[Input]:
    """Yield inputs without a half, a quarter and so on; finally without each byte or id, and
    without each pair."""
    sizes = {max(len(given) >> shift, 1) for shift in range(1, 16)} | {2, 3, 4}
    for size in sorted(sizes, reverse=True):
        step = size if size > 4 else 1
        for at in range(0, len(given) - size + 1, step):
            yield given[:at] + given[at + size :]


def simplify_input(given: Input) -> Iterator[Input]:
    """Yield inputs in which a character is replaced by a simpler one. Ids are not replaced."""
    if not isinstance(given, bytes):
        return
    at = 0
    for end in (*character_ends(given), len(given)):
        for simple in SIMPLER:
            if end > at and given[at:end] != simple:
                yield given[:at] + simple + given[end:]
        at = end


def character_ends(text: bytes) -> list[int]:
    return [at for at in range(1, len(text)) if text[at] & 0xC0 != 0x80]
