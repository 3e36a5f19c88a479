"""Products of rows of weights, as stored in a file, with a few tokens, for common formats. A block
adds an exact integer times two scales. `fast` adds the blocks of a row in float32, one after the
other, and likewise their minima; `mirror` adds in float64.

A kernel is built from a function that multiplies one block:

    sum_of(raw, at, x, at_x, sums, at_sums) -> eight lanes of its sum, and of the sum for minima

`at`: the block's first byte; x: int8 steps of the activations, -127 to 127; sums: sums of groups of
x. Steps are multiplied as unsigned numbers; the excess is a multiple of sums.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable as part
from numpy.typing import NDArray

from lockstep.engine.kernels.dots import (
    add_bytes,
    add_scaled,
    add_scaled_bytes,
    add_side_by_side,
    as_short,
    both_halves,
    first_lane,
    four_floats,
    four_of,
    half_pairs,
    in_order,
    ints_at,
    no_sums,
    signed_products,
    total,
    totals,
    twice,
)
from lockstep.engine.kernels.lanes import (
    as_float,
    bits_of,
    byte_at,
    bytes_at,
    concat,
    floats_at,
    half_at,
    lookup,
    shorts_at,
    signed_bytes_at,
    spread,
    uint16_at,
    uint32_at,
)
from lockstep.engine.kernels.raw_bytes import prefetch
from lockstep.engine.kernels.scales import scales_and_minima
from lockstep.engine.kernels.stamped import kernel
from lockstep.engine.quants.base import F32, Bytes
from lockstep.engine.quants.iq4_nl import VALUES
from lockstep.engine.quants.q3_k import scales_of

I8 = NDArray[np.int8]
I32 = NDArray[np.int32]
Out = NDArray[Any]  # array of float32 or float64
TOGETHER = 3  # number of matrices that one call multiplies: queries, keys and values
NOTHING = np.int32(0)
ZERO = np.float32(0)


class Arithmetic(NamedTuple):
    """Functions that add up a row's blocks. add: (sums, four blocks' integers, their minima, scales
    of the activations, raw, offset of the first block's scales, distance between such scales)."""

    of: Any  # float32 or float64
    start: Callable[[], Any]
    add: Callable[..., Any]
    add_minima: Callable[..., Any]  # the same for blocks with minima
    end: Callable[[Any], Any]  # returns the sum, and the sum of minima if it is separate


def rows_of(block: "Block", arithmetic: Arithmetic) -> Any:
    sum_of, size, weights = block.sum_of, block.size, block.weights
    d, dmin, m = block.d, block.dmin, block.m
    has_minima, has_lowest = dmin >= 0, m >= 0
    of, begin, end = arithmetic.of, arithmetic.start, arithmetic.end
    add = arithmetic.add_minima if has_minima else arithmetic.add

    # x: (tokens, columns), dx: (tokens, blocks), sums: (tokens, groups)
    # lows: (tokens, blocks), factors of the lowest weights of blocks
    def rows(
        raw: Bytes, row_bytes: int, x: I8, dx: F32, sums: I32, lows: F32,
        out: Out, first: int, start: int, stop: int,
    ) -> None:  # fmt: skip
        n, groups = dx.shape[1], sums.shape[1] // dx.shape[1]
        x, dx, sums, lows = x.reshape(-1), dx.reshape(-1), sums.reshape(-1), lows.reshape(-1)
        fours = n // 4 * 4  # lanes of four blocks are added at once
        for r in range(start, stop):
            for t in range(out.shape[0]):
                found = begin()
                for i in range(0, fours, 4):
                    a, y = r * row_bytes + size * i, t * n + i
                    prefetch(raw, a, 4 * size)
                    b, c, e = a + size, a + 2 * size, a + 3 * size
                    va, la = sum_of(raw, a, x, weights * y, sums, groups * y)
                    vb, lb = sum_of(raw, b, x, weights * (y + 1), sums, groups * (y + 1))
                    vc, lc = sum_of(raw, c, x, weights * (y + 2), sums, groups * (y + 2))
                    ve, le = sum_of(raw, e, x, weights * (y + 3), sums, groups * (y + 3))
                    four, less = totals(va, vb, vc, ve), totals(la, lb, lc, le)
                    found = add(found, four, less, floats_at(dx, y, 4), raw, a + d, size)
                s, low = end(found)
                for i in range(fours, n):
                    a, y = r * row_bytes + size * i, t * n + i
                    va, la = sum_of(raw, a, x, weights * y, sums, groups * y)
                    s += of(total(va)) * (of(half_at(raw, a + d)) * of(dx[y]))
                    if has_minima:
                        low -= of(total(la)) * (of(half_at(raw, a + dmin)) * of(dx[y]))
                if has_lowest:
                    for i in range(n):
                        lowest = half_at(raw, r * row_bytes + size * i + m)
                        low += of(lowest) * of(lows[t * n + i])
                out[t, first + r] = s + low

    return through(name_kernel(rows, sum_of, of))


def through(rows: Any) -> Any:
    """Return a kernel for several matrices (raws), whose rows are numbered consecutively."""

    def several(
        raws: tuple[Bytes, ...], row_bytes: int, x: I8, dx: F32, sums: I32, lows: F32,
        out: Out, start: int, stop: int,
    ) -> None:  # fmt: skip
        first = 0
        for raw in raws:
            n = raw.size // row_bytes
            begin, end = max(start - first, 0), min(stop - first, n)
            rows(raw, row_bytes, x, dx, sums, lows, out, first, begin, end)
            first += n

    return name_kernel(several, rows)


def name_kernel(function: Callable[..., None], *parts_of_it: Any) -> Any:
    """Compile a kernel without numba's reference counts, which would make threads wait."""
    # numba names code after the function and a counter of the compiling process, so kernels of the
    # same name from two processes' caches would be confused
    names = [one.__name__ for one in parts_of_it]
    function.__qualname__ = ".".join([function.__qualname__, *names])
    function.__name__ = "_".join([function.__name__, *names])
    return kernel(function, _nrt=False)


# --- in float32, one after the other; minima have a sum of their own -----------------------------


@part
def two_sums() -> Any:
    return spread(ZERO, 2)


@part
def add_side(both: Any, four: Any, less: Any, by: Any, raw: Any, at: int, apart: int) -> Any:
    a, b = half_at(raw, at), half_at(raw, at + apart)
    c, e = half_at(raw, at + 2 * apart), half_at(raw, at + 3 * apart)
    return add_side_by_side(both, as_float(four) * (four_floats(a, b, c, e) * by), spread(ZERO, 4))


@part
def add_both_sides(both: Any, four: Any, less: Any, by: Any, raw: Any, at: int, apart: int) -> Any:
    scales, minima = half_pairs(raw, at, apart)
    return add_side_by_side(both, as_float(four) * (scales * by), -(as_float(less) * (minima * by)))


@part
def both_sums(both: Any) -> Any:
    return both[0], both[1]


# --- in float64, in whatever order ---------------------------------------------------------------


@part
def four_sums() -> Any:
    return no_sums(4)


@part
def add_four(sums: Any, four: Any, less: Any, by: Any, raw: Any, at: int, apart: int) -> Any:
    a, b = half_at(raw, at), half_at(raw, at + apart)
    c, e = half_at(raw, at + 2 * apart), half_at(raw, at + 3 * apart)
    return add_scaled(sums, four, four_floats(a, b, c, e), by)


@part
def add_and_subtract(
    sums: Any, four: Any, less: Any, by: Any, raw: Any, at: int, apart: int
) -> Any:
    scales, minima = half_pairs(raw, at, apart)
    return add_scaled(add_scaled(sums, four, scales, by), less, minima, -by)


@part
def all_sums(sums: Any) -> Any:
    return total(sums), 0.0


ARITHMETIC = {
    "float32": Arithmetic(np.float32, two_sums, add_side, add_both_sides, both_sums),
    "float64": Arithmetic(np.float64, four_sums, add_four, add_and_subtract, all_sums),
}


# --- blocks of 32 with one scale ------------------------------------------------------------------


@part
def alone(q: Any, offset: int, x: Any, at_x: int, sums: Any, at_sums: int) -> Any:
    """Multiply steps below 128, with an offset subtracted; return the lanes of sums twice."""
    found = add_bytes(first_lane(-offset * sums[at_sums], 8), q, x, at_x)
    return found, found


@part
def signed_sum(q: Any, x: Any, at_x: int, sums: Any, at_sums: int) -> Any:
    found = signed_products(q, x, at_x, sums[at_sums])
    return found, found


@part
def nibbles(raw: Any, at: int) -> Any:
    q = shorts_at(raw, at, 16)
    return concat(q & 15, q >> 4)


@part
def q8_0(raw: Any, at: int, x: Any, at_x: int, sums: Any, at_sums: int) -> Any:
    return signed_sum(shorts_at(raw, at + 2, 32), x, at_x, sums, at_sums)


@part
def q4_0(raw: Any, at: int, x: Any, at_x: int, sums: Any, at_sums: int) -> Any:
    return alone(nibbles(raw, at + 2), 8, x, at_x, sums, at_sums)


@part
def q4_1(raw: Any, at: int, x: Any, at_x: int, sums: Any, at_sums: int) -> Any:
    return alone(nibbles(raw, at + 4), 0, x, at_x, sums, at_sums)


@part
def q5_0(raw: Any, at: int, x: Any, at_x: int, sums: Any, at_sums: int) -> Any:
    fifth = as_short(bits_of(uint32_at(raw, at + 2), 32))
    return alone(nibbles(raw, at + 6) | fifth << 4, 16, x, at_x, sums, at_sums)


@part
def q5_1(raw: Any, at: int, x: Any, at_x: int, sums: Any, at_sums: int) -> Any:
    fifth = as_short(bits_of(uint32_at(raw, at + 4), 32))
    return alone(nibbles(raw, at + 8) | fifth << 4, 0, x, at_x, sums, at_sums)


@part
def iq4_nl(raw: Any, at: int, x: Any, at_x: int, sums: Any, at_sums: int) -> Any:
    return signed_sum(lookup(VALUES, nibbles(raw, at + 2)), x, at_x, sums, at_sums)


# --- blocks of 256, groups of 32 with a scale each ------------------------------------------------


@part
def of_pair(scales: Any, pair: int) -> Any:
    """Return the scales of two groups that are multiplied at once."""
    a, b = 2 * pair, 2 * pair + 1
    return four_of(scales, a, b, a, b)


@part
def q4_k(raw: Any, at: int, x: Any, at_x: int, sums: Any, at_sums: int) -> Any:
    in_order()
    scales, minima = scales_and_minima(raw, at + 4)
    scales, found = twice(scales, 0), spread(NOTHING, 8)
    for pair in range(4):  # two groups share 32 bytes: low nibbles, then high nibbles
        q, scale = shorts_at(raw, at + 16 + 32 * pair, 32), of_pair(scales, pair)
        found = add_scaled_bytes(found, q & 15, q >> 4, x, at_x + 64 * pair, scale)
    return found, minima * ints_at(sums, at_sums, 8)


@part
def q5_k(raw: Any, at: int, x: Any, at_x: int, sums: Any, at_sums: int) -> Any:
    scales, minima = scales_and_minima(raw, at + 4)
    scales, found = twice(scales, 0), spread(NOTHING, 8)
    fifth = shorts_at(raw, at + 16, 32)
    for pair in range(4):
        q, scale = shorts_at(raw, at + 48 + 32 * pair, 32), of_pair(scales, pair)
        low = q & 15 | (fifth >> 2 * pair & 1) << 4
        high = q >> 4 | (fifth >> 2 * pair + 1 & 1) << 4
        found = add_scaled_bytes(found, low, high, x, at_x + 64 * pair, scale)
    return found, minima * ints_at(sums, at_sums, 8)


@part
def iq4_xs(raw: Any, at: int, x: Any, at_x: int, sums: Any, at_sums: int) -> Any:
    found = spread(NOTHING, 8)
    for group in range(8):
        low = byte_at(raw, at + 4 + group // 2) >> 4 * (group % 2) & 15
        scale = np.int32((low | (uint16_at(raw, at + 2) >> 2 * group & 3) << 4) - 32)
        q = lookup(VALUES, nibbles(raw, at + 8 + 16 * group))
        four = signed_products(q, x, at_x + 32 * group, sums[at_sums + group])
        found = found + scale * four
    return found, found


# --- blocks of 256, groups of 16 with a scale each ------------------------------------------------


@part
def of_sums(scales: Any, sums: Any, at: int) -> Any:
    """Multiply 16 scales by the sums of 16 groups, and return eight lanes of sums."""
    low, high = both_halves(scales)
    return low * ints_at(sums, at, 8) + high * ints_at(sums, at + 8, 8)


@part
def of_four(scales: Any, four: int) -> Any:
    """Return the scales of four groups multiplied at once; the first and third share a register."""
    a = 4 * (four % 2)
    return four_of(twice(scales, 8 * (four // 2)), a, a + 2, a + 1, a + 3)


@part
def q6_k(raw: Any, at: int, x: Any, at_x: int, sums: Any, at_sums: int) -> Any:
    scales = signed_bytes_at(raw, at + 192, 16)
    found = of_sums(scales, sums, at_sums) * -32
    for four in range(4):
        half, side = four // 2, four % 2
        top = shorts_at(raw, at + 128 + 32 * half, 32) >> 4 * side
        a = shorts_at(raw, at + 64 * half, 32) >> 4 * side & 15 | (top & 3) << 4
        b = shorts_at(raw, at + 64 * half + 32, 32) >> 4 * side & 15 | (top >> 2 & 3) << 4
        found = add_scaled_bytes(found, a, b, x, at_x + 64 * four, of_four(scales, four))
    return found, found


@part
def q3_k(raw: Any, at: int, x: Any, at_x: int, sums: Any, at_sums: int) -> Any:
    scales = scales_of(raw, at + 96) - 32
    found = of_sums(scales, sums, at_sums) * -4
    top = shorts_at(raw, at, 32)
    for four in range(4):
        low, by = shorts_at(raw, at + 32 + 32 * (four // 2), 32), 4 * (four % 2)
        a = low >> by & 3 | (top >> 2 * four & 1) << 2
        b = low >> by + 2 & 3 | (top >> 2 * four + 1 & 1) << 2
        found = add_scaled_bytes(found, a, b, x, at_x + 64 * four, of_four(scales, four))
    return found, found


@part
def q2_k(raw: Any, at: int, x: Any, at_x: int, sums: Any, at_sums: int) -> Any:
    scales, found = bytes_at(raw, at, 16), spread(NOTHING, 8)
    for four in range(4):
        q, scale = shorts_at(raw, at + 16 + 32 * (four // 2), 32), of_four(scales & 15, four)
        q = q >> 4 * (four % 2)
        found = add_scaled_bytes(found, q & 3, q >> 2 & 3, x, at_x + 64 * four, scale)
    return found, of_sums(scales >> 4, sums, at_sums)


@dataclass(frozen=True)
class Block:
    """Layout of a block. size: number of bytes; d, dmin, m: offset of each scale, -1 if the block
    lacks it; pairs: True if each sum covers a group twice as long as usual."""

    sum_of: Callable[..., Any]
    size: int
    weights: int
    d: int
    dmin: int = -1
    m: int = -1
    pairs: bool = False


BLOCKS = {
    "Q8_0": Block(q8_0, 34, 32, 0),
    "Q4_0": Block(q4_0, 18, 32, 0),
    "Q4_1": Block(q4_1, 20, 32, 0, m=2),
    "Q5_0": Block(q5_0, 22, 32, 0),
    "Q5_1": Block(q5_1, 24, 32, 0, m=2),
    "IQ4_NL": Block(iq4_nl, 18, 32, 0),
    "IQ4_XS": Block(iq4_xs, 136, 256, 0, pairs=True),
    "Q2_K": Block(q2_k, 84, 256, 80, 82),
    "Q3_K": Block(q3_k, 110, 256, 108),
    "Q4_K": Block(q4_k, 144, 256, 0, 2, pairs=True),
    "Q5_K": Block(q5_k, 176, 256, 0, 2, pairs=True),
    "Q6_K": Block(q6_k, 210, 256, 208),
}


@cache
def rows(name: str, arithmetic: str) -> Any:
    """Return the kernel (raws, row_bytes, x, dx, sums, lows, out, start, stop) of a format."""
    return rows_of(BLOCKS[name], ARITHMETIC[arithmetic])
