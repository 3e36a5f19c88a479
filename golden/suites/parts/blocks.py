"""The named blocks of a weight format: odd scales, every stored value, whole code books, random
blocks."""

from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import WeightFormat
from lockstep.harness.fuzzers.quants.blocks import OddScale, corners, halfway, place_of, scales_of
from lockstep.harness.synth.draws import octets, stream

Block = NDArray[np.uint8]
Named = Iterator[tuple[str, Block]]

ENDS = bytes([0x80, 0x7F, 0x00, 0x01, 0xFF, 0x81, 0x08, 0xF0])  # smallest, largest, and around zero
FILLS = (0x00, 0xFF, 0x80, 0x7F, 0x0F, 0xF0, 0x55, 0xAA)
SHORT = 16  # in a shorter field, each nibble gets all values instead of each byte
CHANCE = 16  # number of random blocks, and of random blocks with a usual scale
NUMBERS = 64  # number of random values of a type without blocks
USUAL = {1: 0x78, 2: 0x2000}  # bits of a scale like those of real weights, by the scale's bytes
TOGETHER = tuple(
    product(("zero", "minus-zero", "infinite", "minus-infinite", "quiet-nan"), repeat=2)
)
# fields of indices with more than a byte: low bits, high bits, and the values of the field with the
# high bits
LONG_INDEX: dict[str, tuple[str, str, list[int]]] = {
    "IQ1_S": ("qs", "qh", [0o1111 * high for high in range(8)]),
    "IQ1_M": ("qs", "qh", [0x11 * high for high in range(8)]),
    "IQ2_S": ("qs", "qh", [0x55 * high for high in range(4)]),
    "IQ3_S": ("qs", "qh", [0x00, 0xFF]),
}


def named_blocks(kind: type[WeightFormat], seed: int) -> dict[str, bytes]:
    """Return 64 or more uniquely named blocks, with the same bytes on every machine."""
    make = numbers if kind.weights == 1 else quantise_normals
    found: dict[str, bytes] = {}
    for name, block in make(kind, seed):
        if name in found:
            raise ValueError(f"two blocks of {kind.name} are named {name!r}")
        found[name] = block.tobytes()
    return found


# --- types with blocks ----------------------------------------------------------------------


def quantise_normals(kind: type[WeightFormat], seed: int) -> Named:
    scales = scales_of(kind)
    chance = draw_blocks(kind, seed, "random", 2 * CHANCE)
    yield from odd_scales(kind, scales)
    yield from filled_fields(kind, scales, chance[0])
    yield from every_value(kind, scales)
    yield from whole_book(kind, scales)
    for i, block in enumerate(chance[:CHANCE]):
        yield f"random-{i:02d}", block
    for i, block in enumerate(chance[CHANCE:]):
        for scale in scales:
            put(scale, block, USUAL[scale.width] + i)
        yield f"usual-{i:02d}", block


def odd_scales(kind: type[WeightFormat], scales: list[OddScale]) -> Named:
    size = kind.layout.itemsize
    ends = np.frombuffer((ENDS * size)[:size], np.uint8)
    for scale in scales:
        for name, bits in corners(scale.width).items():
            block = with_ones(scales, ends)
            put(scale, block, bits)
            yield f"{scale.name}-{name}-ends", block
            if not name.startswith("minus") and scale is scales[0]:
                block = with_ones(scales, np.zeros(size, np.uint8))
                put(scale, block, bits)
                yield f"{scale.name}-{name}-zeros", block
    if len(scales) == 2:
        special = corners(scales[0].width)
        for a, b in TOGETHER:
            block = ends.copy()
            put(scales[0], block, special[a])
            put(scales[1], block, special[b])
            yield f"{scales[0].name}-{a}-{scales[1].name}-{b}", block


def filled_fields(kind: type[WeightFormat], scales: list[OddScale], chance: Block) -> Named:
    """Yield blocks with one field of equal bytes; all other fields are random."""
    for name in byte_fields(kind):
        dtype, at = place_of(kind, name)
        short = dtype.itemsize < SHORT
        for value in range(0, 256, 0x11) if short else FILLS:
            block = with_ones(scales, chance)
            block[at : at + dtype.itemsize] = value
            yield f"{name}-all-{value:02x}", restore_scales(kind, scales, name, block)


def every_value(kind: type[WeightFormat], scales: list[OddScale]) -> Named:
    """Yield blocks in which byte i of a field is i more than its first byte; the rest of the block
    is zero."""
    for name in byte_fields(kind):
        dtype, at = place_of(kind, name)
        n = dtype.itemsize
        for first in range(0, 256, n) if n >= SHORT else ():
            block = np.zeros(kind.layout.itemsize, np.uint8)
            block[at : at + n] = np.arange(first, first + n) % 256
            yield f"{name}-from-{first:02x}", with_ones(scales, block)


def whole_book(kind: type[WeightFormat], scales: list[OddScale]) -> Named:
    """Yield blocks that use every entry of a code book, for formats whose index is longer than a
    byte or shares its field."""
    if kind.name in LONG_INDEX:
        yield from long_indices(kind, scales)
    elif kind.name == "IQ2_XS":  # 9 bits of index, and 7 bits of signs
        for first in range(0, 512, 32):
            indices = np.arange(first, first + 32).astype("<u2").view(np.uint8)
            yield f"book-{first:03x}", with_ones(scales, after_scale(indices, kind))
    # 4 indices of one byte, then 4 x 7 bits of signs and 4 bits of scale
    elif kind.name == "IQ2_XXS":
        for first in range(0, 256, 32):
            groups = np.zeros((8, 8), np.uint8)
            groups[:, :4] = np.arange(first, first + 32).reshape(8, 4)
            yield f"book-{first:03x}", with_ones(scales, after_scale(groups.reshape(-1), kind))


def long_indices(kind: type[WeightFormat], scales: list[OddScale]) -> Named:
    low, high, values = LONG_INDEX[kind.name]
    (dtype, at), (high_dtype, high_at) = place_of(kind, low), place_of(kind, high)
    item, n = high_dtype.base.itemsize, dtype.itemsize
    for top, value in enumerate(values):
        raw = np.frombuffer(value.to_bytes(item, "little"), np.uint8)
        for first in range(0, 256, n):
            block = np.zeros(kind.layout.itemsize, np.uint8)
            block[at : at + n] = np.arange(first, first + n)
            block[high_at : high_at + high_dtype.itemsize] = np.tile(
                raw, high_dtype.itemsize // item
            )
            yield f"book-{top}{first:02x}", with_ones(scales, block)


def after_scale(content: Block, kind: type[WeightFormat]) -> Block:
    """Return a block with a zero scale of half precision, then these bytes, then zeros."""
    block = np.zeros(kind.layout.itemsize, np.uint8)
    block[2 : 2 + content.size] = content
    return block


# --- types without blocks -------------------------------------------------------------------


def numbers(kind: type[WeightFormat], seed: int) -> Named:
    dtype = kind.layout[0]
    n = dtype.itemsize
    if kind.name == "I8":
        for value in range(256):
            yield f"value-{value:02x}", np.array([value], np.uint8)
        return
    for bit in range(8 * n):
        yield f"bit-{bit:02d}", block_of(1 << bit, n)
    if scales_of(kind) or kind.name == "BF16":
        for name, bits in corners(n, 8 if kind.name == "BF16" else 0).items():
            yield f"value-{name}", block_of(bits, n)
    else:
        top = 1 << (8 * n - 1)
        for name, bits in {"zero": 0, "largest": top - 1, "minus-one": 2 * top - 1}.items():
            yield f"value-{name}", block_of(bits, n)
    chance = draw_blocks(kind, seed, "random", NUMBERS)
    for i, block in enumerate(chance):
        yield f"random-{i:02d}", block
    if n > 2 and kind.name != "F32":
        for i, block in enumerate(halfway(chance, dtype, np.arange(NUMBERS))):
            yield f"halfway-{i:02d}", block


# --- parts ----------------------------------------------------------------------------------


def draw_blocks(kind: type[WeightFormat], seed: int, what: str, count: int) -> Block:
    """Return random blocks: (count, bytes of a block)."""
    size = kind.layout.itemsize
    raw = octets(stream(seed, f"golden.dequant.{kind.name}.{what}"), count * size)
    return raw.reshape(count, size)


def put(scale: OddScale, block: Block, bits: int) -> None:
    scale.put(block[None], np.array([bits]))


def with_ones(scales: list[OddScale], block: Block) -> Block:
    """Return a copy in which every scale is 1."""
    changed = block.copy()
    for scale in scales:
        put(scale, changed, scale.one)
    return changed


def restore_scales(
    kind: type[WeightFormat], scales: list[OddScale], name: str, block: Block
) -> Block:
    """Restore the scale 1 if a fill has overwritten a scale whose bits are spread over the filled
    field."""
    return with_ones(scales, block) if kind.name == "IQ1_M" and name == "scales" else block


def byte_fields(kind: type[WeightFormat]) -> list[str]:
    return [name for name in kind.layout.names or () if kind.layout[name].base.kind != "f"]


def block_of(bits: int, width: int) -> Block:
    return np.frombuffer(bits.to_bytes(width, "little"), np.uint8)
