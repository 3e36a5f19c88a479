"""Compiled conversion of activations to the same bytes as the formulas give, for `fast`."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.kernels.integers import TOKENS
from lockstep.engine.kernels.stamped import kernel
from lockstep.engine.quants.base import F32

I8 = NDArray[np.int8]
I16 = NDArray[np.int16]
I32 = NDArray[np.int32]
ZERO, ONE, MOST = np.float32(0), np.float32(1), np.float32(127)
LARGE = np.float32(2.0**31)
MAGIC = np.float32(1.5 * 2**23)
INFINITE = np.int32(0x7F800000)


@dataclass(frozen=True, eq=False)
class ActivationSteps:
    """Activations as steps. x: (tokens, columns); dx: the scales, (tokens, runs); sums: the sums of
    groups, (tokens, groups); pairs: the sums of groups twice as long; lows: the factors of the
    lowest weights of blocks, (tokens, blocks)."""

    x: I8
    dx: F32
    sums: I32
    pairs: I32
    lows: F32

    @cached_property
    def have_opposites(self) -> bool:
        """Return True if no step is -128, which is nearly always true."""
        return bool(self.x.min(initial=0) > -128)

    @cached_property
    def tiles(self) -> tuple[I16, F32]:
        """Return x and dx in the layout of `panels`."""
        return tiled_pairs(self.x.astype(np.int16)), tile_tokens(self.dx)

    @cached_property
    def tiles_of_minima(self) -> tuple[I16, F32]:
        """Return factors of the minima and their scales, in the layout of `panels`."""
        if not self.lows.shape[1]:
            return tiled_pairs(self.sums.astype(np.int16)), tile_tokens(self.dx)
        ones = np.zeros((*self.lows.shape, 2), np.int16)
        ones[..., 0] = 1
        return tiled_pairs(ones.reshape(len(ones), -1)), tile_tokens(self.lows)


def tile_tokens(x: NDArray[Any]) -> NDArray[Any]:
    """Arrange x in tiles, padded with zeros: (tokens, n) -> (tiles, n, tokens of a tile)."""
    tiles = -(-len(x) // TOKENS)
    filled = np.zeros((tiles * TOKENS, x.shape[1]), x.dtype)
    filled[: len(x)] = x
    return np.ascontiguousarray(filled.reshape(tiles, TOKENS, x.shape[1]).transpose(0, 2, 1))


def tiled_pairs(x: I16) -> I16:
    """Return pairs of columns in tiles of tokens: (tokens, n) -> (tiles, n / 2, tokens of a tile,
    2)."""
    pairs = tile_tokens(np.ascontiguousarray(x).view(np.int32))
    return pairs.view(np.int16).reshape(*pairs.shape, 2)


@kernel
def to_q8(x: F32, steps: I8, scales: F32, sums: I32, wide_sums: I32) -> None:
    """Convert to Q8_0 or Q8_1 as x86 code does; scales are not rounded to halves yet. wide_sums:
    sums of the steps before clamping."""
    lanes = np.empty(8, np.float32)  # stands for a vector register of eight numbers
    for t in range(x.shape[0]):
        for b in range(scales.shape[1]):
            block, to = x[t, 32 * b : 32 * b + 32], steps[t, 32 * b : 32 * b + 32]
            # this order decides the effect of NaN, for which a > b is false
            for i in range(8):
                lanes[i] = abs(block[i])
            for i in range(8, 32):
                size = abs(block[i])
                lanes[i % 8] = lanes[i % 8] if lanes[i % 8] > size else size
            for half in (4, 2, 1):
                for i in range(half):
                    first, second = lanes[i], lanes[half + i]
                    if half == 4:
                        first, second = second, first
                    lanes[i] = first if first > second else second
            largest = lanes[0]
            inverse = MOST / largest if largest != ZERO else ZERO
            scales[t, b] = largest / MOST
            total = wide_total = np.int32(0)
            for i in range(32):
                whole = np.rint(block[i] * inverse)
                wide = np.int32(whole) if abs(whole) < LARGE else np.int32(-(2**31))
                fitting: Any = max(-128, min(127, wide))
                to[i] = fitting
                total += np.int32(to[i])
                wide_total += wide
            sums[t, b], wide_sums[t, b] = total, wide_total


@kernel
def magnitude(bits: Any) -> Any:
    """Return a number that orders floats by magnitude, from a float's bits; 0 for a NaN."""
    size = np.int32(bits & 0x7FFFFFFF)
    return size if size <= INFINITE else np.int32(0)


@kernel
def to_q8_k(x: F32, steps: I8, scales: F32, sums: I32, pairs: I32) -> None:
    """Convert to Q8_K. sums: the sum of every 16 steps; pairs: the sum of every 32 steps."""
    x_bits = x.view(np.int32)
    for t in range(x.shape[0]):
        for b in range(scales.shape[1]):
            block, to = x[t, 256 * b : 256 * b + 256], steps[t, 256 * b : 256 * b + 256]
            bits = x_bits[t, 256 * b : 256 * b + 256]
            size, first = np.int32(0), np.int32(255)
            for i in range(256):
                size = max(size, magnitude(bits[i]))
            for i in range(256):  # the first of several equal values
                first = min(first, np.int32(i) if magnitude(bits[i]) == size else np.int32(255))
            largest = block[first]
            inverse = -MOST / largest if size else ZERO
            scales[t, b] = ONE / inverse if size else ZERO
            for i in range(256):
                moved = np.float32(block[i] * inverse + MAGIC).view(np.int32)
                nearest: Any = min(np.int32((moved & 0x007FFFFF) - 0x00400000), np.int32(127))
                to[i] = nearest if size else np.int32(0)
            for g in range(16):
                total = np.int32(0)
                for i in range(16):
                    total += np.int32(to[16 * g + i])
                sums[t, 16 * b + g] = total
            for g in range(8):
                at = 16 * b + 2 * g
                pairs[t, 8 * b + g] = sums[t, at] + sums[t, at + 1]


def q8_0(x: F32) -> ActivationSteps:
    steps, scales, sums, _ = of_32(x)
    return ActivationSteps(steps, round_to_halves(scales), sums, sums[:, :0], scales[:, :0])


def q8_1(x: F32) -> ActivationSteps:
    steps, scales, sums, wide = of_32(x)
    with np.errstate(over="ignore", invalid="ignore"):  # large sums become infinite, as in ggml
        lows = round_to_halves(scales * wide.astype(np.float32))
    return ActivationSteps(steps, round_to_halves(scales), sums, sums[:, :0], lows)


def q8_k(x: F32) -> ActivationSteps:
    steps, n = np.empty(x.shape, np.int8), x.shape[1] // 256
    scales, sums = np.empty((len(x), n), np.float32), np.empty((len(x), 16 * n), np.int32)
    pairs = np.empty((len(x), 8 * n), np.int32)
    to_q8_k(x, steps, scales, sums, pairs)
    return ActivationSteps(steps, scales, sums, pairs, scales[:, :0])


def of_32(x: F32) -> tuple[I8, F32, I32, I32]:
    shape = len(x), x.shape[1] // 32
    found = np.empty(x.shape, np.int8), np.empty(shape, np.float32)
    sums = np.empty(shape, np.int32), np.empty(shape, np.int32)
    to_q8(x, *found, *sums)
    return *found, *sums


def round_to_halves(x: F32) -> F32:
    """Round to halves."""
    with np.errstate(all="ignore"):
        return x.astype(np.float16).astype(np.float32)


CONVERTED = {"Q8_0": q8_0, "Q8_1": q8_1, "Q8_K": q8_k}
