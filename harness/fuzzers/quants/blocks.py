"""Numbered blocks of a weight format. Block n of a seed is the same wherever a run starts.

Every other case is directed, until all directed cases are used: every value of each scale, every
byte in each place, and every pair of bytes in every two fields. The other cases are random, and
half of them have special scales. Everything follows from the format's layout, except for SCALES.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from lockstep.engine.quants.base import Bytes, WeightFormat
from lockstep.harness.synth.draws import stream

Numbers = NDArray[np.int64]
Blocks = NDArray[np.uint8]  # (blocks, bytes of a block)
STEP = 1_000_003  # a prime, so that any run of directed cases is a sample of all of them


@dataclass(frozen=True)
class OddScale:
    """A number of `width` bytes that multiplies other numbers of a block, and the function that
    writes it into blocks."""

    name: str
    width: int
    one: int  # the bits of a number at or near 1
    put: Callable[[Blocks, Numbers], None]  # arguments: blocks, the bits for each block


def scales_of(kind: type[WeightFormat]) -> list[OddScale]:
    own = OWN_SCALES.get(kind.name)
    if own is not None:
        return own(kind)
    ones = {2: 0x3C00, 4: 0x3F800000, 8: 0x3FF0 << 48}
    fields = ((name, kind.layout[name]) for name in kind.layout.names or ())
    return [
        OddScale(name, dtype.itemsize, ones[dtype.itemsize], field_writer(kind, name))
        for name, dtype in fields
        if dtype.kind == "f" and not dtype.shape
    ]


def field_writer(kind: type[WeightFormat], name: str) -> Callable[[Blocks, Numbers], None]:
    dtype, at = place_of(kind, name)
    shape = dtype.shape or (1,)
    width = dtype.itemsize // math.prod(shape)

    def put(blocks: Blocks, bits: Numbers) -> None:
        raw = bits.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width]
        blocks[:, at : at + dtype.itemsize] = np.tile(raw, math.prod(shape))

    return put


def place_of(kind: type[WeightFormat], name: str) -> tuple[np.dtype[Any], int]:
    """Return the type and first byte of a field."""
    assert kind.layout.fields is not None
    dtype, at = kind.layout.fields[name][:2]
    return dtype, at


def nibbles_writer(kind: type[WeightFormat]) -> Callable[[Blocks, Numbers], None]:
    """Return a function that writes the scale of IQ1_M, whose half-precision bits are in the top
    nibbles of four 16-bit words."""
    _, at = place_of(kind, "scales")

    def put(blocks: Blocks, bits: Numbers) -> None:
        for i in range(4):
            byte = blocks[:, at + 2 * i + 1]
            byte[:] = (byte & 0x0F) | ((bits >> 4 * i) & 15).astype(np.uint8) << 4

    return put


OWN_SCALES: dict[str, Callable[[type[WeightFormat]], list[OddScale]]] = {
    "IQ1_M": lambda kind: [OddScale("d", 2, 0x3C00, nibbles_writer(kind))],
    "MXFP4": lambda kind: [OddScale("e", 1, 128, field_writer(kind, "e"))],
    "NVFP4": lambda kind: [OddScale("d", 1, 0x40, field_writer(kind, "d"))],
}
EXPONENT = {1: 0, 2: 5, 4: 8, 8: 11}  # number of exponent bits, by the number of bytes


def corners(width: int, exponent: int = 0) -> dict[str, int]:
    """Return the bits of zero, of the smallest and largest numbers of each class, and of infinity
    and NaNs, all with either sign. exponent: the number of exponent bits, 0 for the usual number.
    One-byte numbers have a separate list."""
    if width == 1:
        codes = (0, 1, 2, 7, 8, 0x3F, 0x40, 126, 127, 128, 129, 253, 254, 255)
        return {f"{code:02x}": code for code in codes}
    sign, mantissa = 1 << (8 * width - 1), 8 * width - 1 - (exponent or EXPONENT[width])
    infinite = (sign - 1) >> mantissa << mantissa
    half = 1 << (mantissa - 1)
    one = infinite // 2 >> mantissa << mantissa
    above = {
        "zero": 0,
        "least-subnormal": 1,
        "largest-subnormal": (1 << mantissa) - 1,
        "least-normal": 1 << mantissa,
        "third": one - 2 * (1 << mantissa) + (1 << mantissa) // 3,
        "one": one,
        "largest": infinite - 1,
        "infinite": infinite,
        "signalling-nan": infinite + 1,
        "quiet-nan": infinite + half,
        "longest-nan": sign - 1,
    }
    return above | {f"minus-{name}": bits + sign for name, bits in above.items()}


def all_bits(width: int) -> Numbers:
    """Return every value of one or two bytes. For wider numbers return every value of the upper two
    bytes, each with a few values of the lower bytes."""
    if width <= 2:
        return np.arange(1 << 8 * width)
    upper = np.arange(1 << 16, dtype=np.uint64) << np.uint64(8 * width - 16)
    lower = (0, 1, 1 << (8 * width - 17), (1 << (8 * width - 16)) - 1)
    every: Numbers = np.concatenate([upper | np.uint64(low) for low in lower]).view(np.int64)
    return every


# --- random ---------------------------------------------------------------------------------


def random_blocks(kind: type[WeightFormat], seed: int, start: int, count: int) -> Blocks:
    """Return random blocks, in which all bytes are equally likely. Each block uses whole steps of
    the generator, so that every case has its own numbers."""
    size = kind.layout.itemsize
    steps = -(-size // 32)  # Philox produces 32 bytes at each step
    key = stream(seed, f"fuzz.{kind.name}").state["state"]["key"]
    bits = Philox(key=key, counter=start * steps)
    raw = bits.random_raw(count * steps * 4).astype("<u8").view(np.uint8)
    return np.ascontiguousarray(raw.reshape(count, 32 * steps)[:, :size])


def with_special_scales(kind: type[WeightFormat], blocks: Blocks, numbers: Numbers) -> None:
    """Set every scale to a special value, so that successive cases have all combinations. A wide
    plain number is set between two floats instead."""
    scales = scales_of(kind)
    turn = numbers
    for scale in scales:
        special = np.array(list(corners(scale.width).values()), np.uint64).view(np.int64)
        scale.put(blocks, special[turn % len(special)])
        turn = turn // len(special)
    dtype = kind.layout[0]
    if kind.weights == 1 and dtype.itemsize > 2 and kind.name != "F32":
        blocks[:] = halfway(blocks, dtype, numbers)


def halfway(blocks: Blocks, dtype: np.dtype[Any], numbers: Numbers) -> Blocks:
    """Return numbers in the middle between two float32 neighbours, just below it, and just above
    it."""
    drawn = blocks[:, :4].copy().view("<u4")[:, 0]
    if dtype.kind == "f":
        lower = np.where(drawn & 0x7F800000 < 0x7F000000, drawn, drawn & 0x7FFFFF)
        pair = (lower.view(np.float32), (lower + np.uint32(1)).view(np.float32))
        middle = (pair[0].astype(np.float64) + pair[1]) / 2
        close = (middle.view(np.int64) + numbers % 3 - 1).astype("<i8")
        return np.ascontiguousarray(close[:, None]).view(np.uint8)
    shift = 1 + numbers % (8 * dtype.itemsize - 25)
    mantissa = drawn.astype(np.int64) & 0xFFFFFF
    near = (mantissa << shift) + (np.int64(1) << (shift - 1)) + numbers % 3 - 1
    signed = np.where(drawn >> 31, -near, near).astype(dtype)
    return np.ascontiguousarray(signed[:, None]).view(np.uint8)


# --- directed -------------------------------------------------------------------------------

# number of blocks, and a function that makes the blocks with given numbers
Part = tuple[int, Callable[[Numbers], Blocks]]


def directed_parts(kind: type[WeightFormat], seed: int) -> list[Part]:
    size, scales = kind.layout.itemsize, scales_of(kind)
    drawn = random_blocks(kind, seed, 1 << 62, 2)
    templates = np.stack([np.zeros(size, np.uint8), np.full(size, 255, np.uint8), *drawn])
    plain = templates[[0, 2]].copy()
    to_one(scales, plain)
    parts: list[Part] = [every_scale(scale, templates) for scale in scales]
    parts.append(every_byte(plain))
    spans = byte_spans(kind)
    pairs = list(combinations(spans, 2)) or [(spans[0], spans[0])]
    # a scale of one byte, or a single number, is covered by the pairs above
    kept = [scale for scale in scales if scale.width > 1 and kind.weights > 1]
    parts += [two_filled(plain[0], kept, *pair) for pair in pairs]
    parts += [two_scales(size, *pair) for pair in combinations(scales, 2)]
    return parts


def to_one(scales: list[OddScale], blocks: Blocks) -> None:
    for scale in scales:
        scale.put(blocks, np.full(len(blocks), scale.one, np.int64))


def byte_spans(kind: type[WeightFormat]) -> list[slice]:
    """Return the places of all fields that are not floats; the whole block if all fields are
    floats."""
    fields = [f[:2] for f in (kind.layout.fields or {}).values() if f[0].base.kind != "f"]
    spans = [slice(at, at + dtype.itemsize) for dtype, at in fields]
    return spans or [slice(0, kind.layout.itemsize)]


def every_scale(scale: OddScale, templates: Blocks) -> Part:
    values = all_bits(scale.width)

    def make(numbers: Numbers) -> Blocks:
        blocks = templates[numbers // len(values)]
        scale.put(blocks, values[numbers % len(values)])
        return blocks

    return len(values) * len(templates), make


def every_byte(plain: Blocks) -> Part:
    size = plain.shape[1]

    def make(numbers: Numbers) -> Blocks:
        rest, value = np.divmod(numbers, 256)
        template, place = np.divmod(rest, size)
        blocks = plain[template]
        blocks[np.arange(len(blocks)), place] = value
        return blocks

    return 256 * size * len(plain), make


def two_filled(plain: Blocks, scales: list[OddScale], a: slice, b: slice) -> Part:
    """Return blocks in which two fields are filled with one byte each, or one field with two bytes
    alternately."""

    def make(numbers: Numbers) -> Blocks:
        blocks = np.tile(plain, (len(numbers), 1))
        first, second = np.divmod(numbers, 256)
        blocks[:, a] = first[:, None]
        blocks[:, b if a != b else slice(a.start + 1, a.stop, 2)] = second[:, None]
        to_one(scales, blocks)
        return blocks

    return 1 << 16, make


def two_scales(size: int, a: OddScale, b: OddScale) -> Part:
    fills = np.array([0x00, 0xFF, 0x0F, 0xF0, 0x55, 0xAA, 0x80, 0x7F])
    first, second = (np.array(list(corners(scale.width).values())) for scale in (a, b))

    def make(numbers: Numbers) -> Blocks:
        rest, fill = np.divmod(numbers, len(fills))
        blocks = np.tile(fills[fill].astype(np.uint8)[:, None], size)
        i, j = np.divmod(rest, len(second))
        a.put(blocks, first[i])
        b.put(blocks, second[j])
        return blocks

    return len(first) * len(second) * len(fills), make


# --- cases ----------------------------------------------------------------------------------


class Cases:
    """The cases of one format under one seed."""

    def __init__(self, kind: type[WeightFormat], seed: int) -> None:
        self.kind, self.seed = kind, seed
        self.parts = directed_parts(kind, seed)
        self.n_directed = sum(count for count, _ in self.parts)

    def blocks(self, start: int, stop: int) -> Bytes:
        """Return the blocks of the cases from start to stop - 1, as flat bytes."""
        numbers = np.arange(start, stop)
        blocks = random_blocks(self.kind, self.seed, start, len(numbers))
        special = numbers % 4 == 3
        changed = blocks[special]
        with_special_scales(self.kind, changed, numbers[special] // 4)
        blocks[special] = changed
        turn = numbers // 2
        chosen = (numbers % 2 == 0) & (turn < self.n_directed)
        if chosen.any():
            blocks[chosen] = self.directed_blocks(turn[chosen] * STEP % self.n_directed)
        return blocks.reshape(-1)

    def directed_blocks(self, numbers: Numbers) -> Blocks:
        out = np.empty((len(numbers), self.kind.layout.itemsize), np.uint8)
        first = 0
        for count, make in self.parts:
            mine = (numbers >= first) & (numbers < first + count)
            out[mine] = make(numbers[mine] - first)
            first += count
        return out

    def directed_among(self, start: int, stop: int) -> int:
        """Return how many of these cases are directed."""
        return min((stop + 1) // 2, self.n_directed) - min((start + 1) // 2, self.n_directed)
