"""Rows of weights times a few tokens, straight from the bytes of a file: of formats that most
models have. What a block adds is an exact integer; the blocks of a row are added up in float32, one
after the other, and so are their minima.

A kernel is made of a function of one block:

    block(raw, at, x, at_x, sums, at_sums) -> lanes of its sum, and of what its minima come to

`at`: its first byte; x: int8 steps of the activations; sums: of groups of them. A block whose steps
have no sign of their own is corrected by the sums.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba.extending import register_jitable as part
from numpy.typing import NDArray

from lockstep.engine.kernels.integers import add_bytes, add_scaled_bytes, first_lane, total, totals
from lockstep.engine.kernels.lanes import (
    as_float,
    concat,
    floats_at,
    four_floats,
    half_at,
    ints_at,
    scales_and_minima,
    shorts_at,
    spread,
)
from lockstep.engine.ops.fast.compiling import kernel
from lockstep.engine.quants.base import F32, Bytes

I8, I32 = NDArray[np.int8], NDArray[np.int32]
ZERO = np.float32(0)
NOTHING = np.int32(0)


@part
def four_halves(raw: Any, at: int, apart: int) -> Any:
    a, b = half_at(raw, at), half_at(raw, at + apart)
    return four_floats(a, b, half_at(raw, at + 2 * apart), half_at(raw, at + 3 * apart))


def rows_of(block: Callable[..., Any], size: int, weights: int, d: int, dmin: int = -1, m: int = -1) -> Any:
    """size: bytes of a block; d, dmin, m: where in it its scales lie, -1 if it has none of these."""
    has_minima, has_lowest = dmin >= 0, m >= 0

    def rows(
        raw: Bytes, row_bytes: int, x: I8, dx: F32, sums: I32, lows: F32, out: F32, start: int, stop: int
    ) -> None:
        """x: (tokens, columns), dx: (tokens, blocks), sums: (tokens, groups); lows: (tokens, blocks)
        what the lowest weight of a block is multiplied by."""
        n, groups = dx.shape[1], sums.shape[1] // dx.shape[1]
        x, dx, sums, lows = x.reshape(-1), dx.reshape(-1), sums.reshape(-1), lows.reshape(-1)
        for r in range(start, stop):
            for t in range(out.shape[0]):
                s = low = ZERO
                fours = n // 4 * 4
                for i in range(0, fours, 4):
                    a, y = r * row_bytes + size * i, t * n + i
                    b, c, e = a + size, a + 2 * size, a + 3 * size
                    va, la = block(raw, a, x, weights * y, sums, groups * y)
                    vb, lb = block(raw, b, x, weights * (y + 1), sums, groups * (y + 1))
                    vc, lc = block(raw, c, x, weights * (y + 2), sums, groups * (y + 2))
                    ve, le = block(raw, e, x, weights * (y + 3), sums, groups * (y + 3))
                    by = floats_at(dx, y, 4)
                    four = as_float(totals(va, vb, vc, ve)) * (four_halves(raw, a + d, size) * by)
                    s = s + four[0] + four[1] + four[2] + four[3]
                    if has_minima:
                        by = four_halves(raw, a + dmin, size) * by
                        four = as_float(totals(la, lb, lc, le)) * by
                        low = low - four[0] - four[1] - four[2] - four[3]
                for i in range(fours, n):
                    a, y = r * row_bytes + size * i, t * n + i
                    va, la = block(raw, a, x, weights * y, sums, groups * y)
                    s += np.float32(total(va)) * (half_at(raw, a + d) * dx[y])
                    if has_minima:
                        low -= np.float32(total(la)) * (half_at(raw, a + dmin) * dx[y])
                if has_lowest:
                    for i in range(n):
                        low += half_at(raw, r * row_bytes + size * i + m) * lows[t * n + i]
                out[t, r] = s + low

    return kernel(rows)


@part
def block_q8_0(raw: Any, at: int, x: Any, at_x: int, sums: Any, at_sums: int) -> Any:
    found = add_bytes(first_lane(-128 * sums[at_sums], 8), shorts_at(raw, at + 2, 32) ^ 128, x, at_x)
    return found, found


@part
def block_q4_0(raw: Any, at: int, x: Any, at_x: int, sums: Any, at_sums: int) -> Any:
    q = shorts_at(raw, at + 2, 16)
    found = add_bytes(first_lane(-8 * sums[at_sums], 8), concat(q & 15, q >> 4), x, at_x)
    return found, found


@part
def block_q4_k(raw: Any, at: int, x: Any, at_x: int, sums: Any, at_sums: int) -> Any:
    scales, minima = scales_and_minima(raw, at + 4)
    found = spread(NOTHING, 8)
    for pair in range(4):  # two groups share 32 bytes: low nibbles, then high ones
        q = shorts_at(raw, at + 16 + 32 * pair, 32)
        found = add_scaled_bytes(found, q & 15, x, at_x + 64 * pair, scales[2 * pair])
        found = add_scaled_bytes(found, q >> 4, x, at_x + 64 * pair + 32, scales[2 * pair + 1])
    return found, minima * ints_at(sums, at_sums, 8)


@dataclass(frozen=True)
class Row:
    """pairs: whether blocks want sums of groups twice as long as the activation format has."""

    kernel: Any
    pairs: bool = False


ROWS = {
    "Q8_0": Row(rows_of(block_q8_0, 34, 32, 0)),
    "Q4_0": Row(rows_of(block_q4_0, 18, 32, 0)),
    "Q4_K": Row(rows_of(block_q4_k, 144, 256, 0, 2), pairs=True),
}
