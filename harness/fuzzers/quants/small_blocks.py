"""Shrinks a block that two engines decode differently to the smallest one that still shows it."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import Bytes, WeightFormat
from lockstep.harness.fuzzers.quants.blocks import Blocks, OddScale, scales_of
from lockstep.harness.fuzzers.shrink import shrink

Shows = Callable[[Blocks], NDArray[np.bool_]]  # returns which blocks still show the difference
FEW = 12  # nonzero bytes up to which pairs are tried too


def shrink_block(kind: type[WeightFormat], block: Bytes, shows: Shows) -> Bytes:
    """Return a block with as few nonzero bytes as possible, then as few bits, so that no single
    step makes it smaller.

    Whole fields are tried first, then runs of bytes, single bytes, pairs and bits. Scales become 1.
    """
    scales = scales_of(kind)

    def size_of(block: Bytes) -> tuple[int, int, int]:
        odd = sum(not (at_one(scale, block) or at_zero(scale, block)) for scale in scales)
        return int(np.count_nonzero(block)), odd, int(np.unpackbits(block).sum())

    makers = (partial(whole_parts, kind, scales), runs, bits_and_pairs)
    return shrink(
        block, makers, lambda some: shows(np.stack(some)), size_of, identity=lambda b: b.tobytes()
    )


def at_one(scale: OddScale, block: Bytes) -> bool:
    return np.array_equal(with_scale(scale, block, scale.one), block)


def at_zero(scale: OddScale, block: Bytes) -> bool:
    return np.array_equal(with_scale(scale, block, 0), block)


def with_scale(scale: OddScale, block: Bytes, bits: int) -> Bytes:
    changed = block.copy()
    scale.put(changed[None], np.array([bits]))
    return changed


def whole_parts(kind: type[WeightFormat], scales: list[OddScale], block: Bytes) -> Iterator[Bytes]:
    for scale in scales:
        yield with_scale(scale, block, scale.one)
    for dtype, at, *_ in (kind.layout.fields or {}).values():
        middle = at + dtype.itemsize // 2
        for part in ((at, at + dtype.itemsize), (at, middle), (middle, at + dtype.itemsize)):
            yield without(block, slice(*part))


def runs(block: Bytes) -> Iterator[Bytes]:
    """Yield the block without half of its nonzero bytes, without a quarter, and so on down to
    single bytes."""
    used = [int(i) for i in np.flatnonzero(block)]
    length = len(used) // 2
    while length:
        for first in range(0, len(used), length):
            yield without(block, used[first : first + length])
        length //= 2


def bits_and_pairs(block: Bytes) -> Iterator[Bytes]:
    used = [int(i) for i in np.flatnonzero(block)]
    for i in used:
        for bit in range(8):
            changed = block.copy()
            changed[i] &= 255 ^ (1 << bit)
            yield changed
    if len(used) <= FEW:
        for pair in combinations(used, 2):
            yield without(block, list(pair))


def without(block: Bytes, places: slice | list[int]) -> Bytes:
    changed = block.copy()
    changed[places] = 0
    return changed


# --- in words -------------------------------------------------------------------------------


def fields_used(kind: type[WeightFormat], block: Bytes) -> list[str]:
    """Return the fields that are not zero. Scales are included only if all other fields are
    zero."""
    scales = {scale.name for scale in scales_of(kind)} if kind.name != "IQ1_M" else set()
    used = [
        name
        for name, (dtype, at, *_) in (kind.layout.fields or {}).items()
        if block[at : at + dtype.itemsize].any()
    ]
    return [name for name in used if name not in scales] or used


def block_in_words(kind: type[WeightFormat], block: Bytes) -> str:
    """Describe the block, for example `d = 1, qs[3] = 0x40, all else zero`."""
    parts = []
    for name, (dtype, at, *_) in (kind.layout.fields or {}).items():
        raw = block[at : at + dtype.itemsize]
        if not raw.any():
            continue
        if dtype.kind == "f":
            value, bits = raw.view(dtype)[0], raw[::-1].tobytes().hex()
            parts.append(f"{name} = {value:g} (0x{bits})")
        else:
            flat = raw.view(dtype.base)
            parts += [f"{name}{index_of(flat, i)} = 0x{int(flat[i]):02x}" if flat[i] >= 0
                      else f"{name}{index_of(flat, i)} = {int(flat[i])}"
                      for i in map(int, np.flatnonzero(flat))]  # fmt: skip
    if len(parts) > FEW:
        parts = [*parts[:FEW], f"{len(parts) - FEW} more values"]
    return ", ".join([*parts, "all else zero"]) if parts else "all bytes zero"


def index_of(values: NDArray[np.generic], i: int) -> str:
    return f"[{i}]" if len(values) > 1 else ""
