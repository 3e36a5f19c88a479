"""Rows of weights times many tokens: a few rows are unpacked, then multiplied by all tokens.

The format's own decoder unpacks rows with scales set to one, which gives integers. They are summed
exactly over each run with one scale. Sums of runs are added in float32, one after the other, and so
are minima. The result equals that of `rows` to the last bit.
"""

from functools import cache
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from lockstep.engine.kernels.integers import ROWS, TOKENS, add_scaled, sums_of_run
from lockstep.engine.kernels.lanes import half_at, half_of_bits, spread
from lockstep.engine.kernels.pointers import address_of, call
from lockstep.engine.kernels.raw_bytes import copy_bytes, prefetch
from lockstep.engine.kernels.stamped import kernel
from lockstep.engine.ops.integers import FACTORS
from lockstep.engine.ops.products import minimum_of, run_of
from lockstep.engine.quants import mxfp4, nvfp4
from lockstep.engine.quants.base import F32, Bytes, WeightFormat

I16 = NDArray[np.int16]
I64 = NDArray[np.int64]
NOTHING = np.int32(0)
# additional steps between rows, because a cache holds only few rows at a distance of a power of two
APART = 32
MINUS_ONE = 0xBC00  # bits of -1 in F16
KINDS = types.Array(types.uint8, 1, "C", readonly=True), types.Array(types.int16, 1, "C")
HALF, BYTES, NIBBLES = range(3)  # types of a block's scales
# for scales of bytes: number of scales, the byte that means one, values of all bytes
TABLES = {"MXFP4": (1, 128, mxfp4.SCALES), "NVFP4": (4, 64, nvfp4.SCALES)}


@cache
def format_of(name: str) -> tuple[int, I64, F32]:
    """Return a format's data for the kernels: the address of its decoder, its numbers, and a table.

    The table has the factor of the format's scales, or the value of each scale code.
    """
    kind = WeightFormat.member(name)
    fields: Any = kind.layout.fields
    minimum = minimum_of(kind)
    if kind.name in TABLES:
        (count, one, table), stored = TABLES[kind.name], BYTES
        at = fields["e" if "e" in fields else "d"][1]
    else:
        factor = FACTORS.get(kind.name, 1)
        count, one = 1, int(np.float16(factor).view(np.uint16))
        table = np.full(1, 1 / factor, np.float32)
        stored, at = (HALF, fields["d"][1]) if "d" in fields else (NIBBLES, fields["scales"][1])
    low = fields[minimum][1] if minimum else -1
    several = 16 if minimum == "dmin" else 0
    how = (kind.layout.itemsize, kind.weights, run_of(kind), stored, at, count, one, low, several)
    return address_of(kind.unpack, *KINDS), np.array(how, np.int64), table


@kernel
def put_half(block: Bytes, at: int, bits: int) -> None:
    block[at], block[at + 1] = bits & 255, bits >> 8


@kernel
def scale_of(stored: int, raw: Bytes, at: int, table: F32) -> Any:
    if stored == BYTES:
        return table[raw[at]]
    if stored == HALF:
        return half_at(raw, at) * table[0]
    bits = np.int64(0)  # the highest four bits of each of four 16-bit numbers, lowest number first
    for i in range(4):
        bits |= (np.int64(raw[at + 2 * i + 1]) >> 4) << 4 * i
    return half_of_bits(bits) * table[0]


@kernel
def put_one(stored: int, block: Bytes, at: int, count: int, one: int) -> None:
    if stored == BYTES:
        block[at : at + count] = one
    elif stored == HALF:
        put_half(block, at, one)
    else:
        for i in range(4):
            at_i = at + 2 * i + 1
            block[at_i] = block[at_i] & 15 | (one >> 4 * i & 15) << 4


@kernel
def unpack_row(
    unpack: int, how: I64, table: F32, raw: Bytes, at: int, room: Bytes, steps: I16, scales: F32,
    lows: I16, low_scales: F32,
) -> None:  # fmt: skip
    """Unpack the row at this place: steps and a scale for each run; the same for minima.

    room: a buffer for the bytes of one row.
    """
    size, weights, run, stored, d, count, one, low, several = how
    runs = weights // run
    # bytes between scales; with several runs for each scale, there is no second scale
    stride = count // runs
    prefetch(raw, at, room.size)
    copy_bytes(room, raw, at)
    for i in range(room.size // size):
        for k in range(runs):
            scales[i * runs + k] = scale_of(stored, raw, at + i * size + d + k * stride, table)
        if low >= 0:
            lowest = half_at(raw, at + i * size + low)
            low_scales[i] = -lowest if several else lowest
        if several:
            put_half(room, i * size + d, 0)
            put_half(room, i * size + low, MINUS_ONE)
    if several:
        call(unpack, (room, steps))
        group = weights // several
        for i in range(lows.size):
            lows[i] = steps[i * group]
    elif low >= 0:
        lows[::2] = 1
    for i in range(room.size // size):
        put_one(stored, room, i * size + d, count, one)
        if low >= 0:
            put_half(room, i * size + low, 0)
    call(unpack, (room, steps))


@kernel
def products(
    unpack: int, how: I64, table: F32, raw: Bytes, row_bytes: int, x: I16, dx: F32, y: I16, dy: F32,
    out: F32, start: int, stop: int,
) -> None:  # fmt: skip
    """Multiply tiles of integers. x: (tiles, pairs of columns, tokens, 2), dx: (tiles, runs,
    tokens); y, dy: the same for the factors of minima.
    """
    (tiles, runs), low_runs = dx.shape[:2], dy.shape[1]
    columns, low_columns = 2 * x.shape[1], 2 * y.shape[1]
    run, low_run = columns // runs, low_columns // max(low_runs, 1)
    apart, low_apart = columns + APART, low_columns + APART
    steps, lows = np.zeros(ROWS * apart, np.int16), np.zeros(ROWS * low_apart, np.int16)
    scales, low_scales = np.zeros(ROWS * runs, np.float32), np.zeros(ROWS * low_runs, np.float32)
    room = np.empty(row_bytes, np.uint8)
    sums, low = np.empty(ROWS * TOKENS, np.float32), np.empty(ROWS * TOKENS, np.float32)
    x, dx, y, dy = x.reshape(-1), dx.reshape(-1), y.reshape(-1), dy.reshape(-1)
    for first in range(start, stop, ROWS):
        n = min(ROWS, stop - first)
        for j in range(n):
            unpack_row(
                unpack, how, table, raw, (first + j) * row_bytes, room,
                steps[j * apart : j * apart + columns], scales[j * runs : (j + 1) * runs],
                lows[j * low_apart : j * low_apart + low_columns],
                low_scales[j * low_runs : (j + 1) * low_runs],
            )  # fmt: skip
        for tile in range(tiles):
            add_runs(sums, steps, apart, scales, runs, x, dx, tile, run)
            add_runs(low, lows, low_apart, low_scales, low_runs, y, dy, tile, low_run)
            for t in range(min(TOKENS, len(out) - tile * TOKENS)):
                for j in range(n):
                    at = j * TOKENS + t
                    out[tile * TOKENS + t, first + j] = sums[at] + low[at]


@kernel
def add_runs(
    sums: F32, steps: I16, apart: int, scales: F32, runs: int, x: I16, dx: F32, tile: int, run: int
) -> None:
    """Add up the runs of one tile in `sums`, starting at zero."""
    sums[:] = 0
    words, size = steps.view(np.int32), run // 2
    for b in range(runs):
        at = tile * runs + b
        found = sums_of_run(
            spread(NOTHING, TOKENS), words, b * size, apart // 2, x, at * run * TOKENS, 2 * TOKENS,
            size,
        )  # fmt: skip
        add_scaled(sums, 0, TOKENS, found, dx, at * TOKENS, scales, b, runs)
