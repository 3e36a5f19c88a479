"""Conversion of rows of weights, decoded with a scale of one, to integers and scales of blocks."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from lockstep.engine.kernels.lanes import compiled_as, half_at, kernel
from lockstep.engine.kernels.raw_bytes import prefetch
from lockstep.engine.kernels.unpacking import unpack_at
from lockstep.engine.kernels.vectors import F32, I8, I16, I32, address, fill_vector

AT_ONCE = 16  # number of weights; rows are multiples of 32
ALL = np.int32((1 << AT_ONCE) - 1)


@compiled_as
def whole_at(
    typing: Any, weights: Any, at: Any, factor: Any, mask: Any, least: Any, most: Any, offset: Any,
    out: Any,
) -> Any:  # fmt: skip
    """Convert 16 weights as `whole` does; return a bit for each weight, set if it is an integer in
    range.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        weights_at, at, factor, mask, least, most, offset, out_at = args
        floats = ir.VectorType(F32, AT_ONCE)
        start = address(context, builder, weights, weights_at, at, floats)
        factors, bits, lowest, highest, added = (
            fill_vector(builder, value, AT_ONCE) for value in (factor, mask, least, most, offset)
        )
        scaled = builder.fmul(builder.load(start, align=4), factors)
        found = builder.fptosi(scaled, ir.VectorType(I32, AT_ONCE))
        step = builder.and_(found, bits)
        within = builder.select(builder.icmp_signed("<", step, lowest), lowest, step)
        within = builder.select(builder.icmp_signed(">", within, highest), highest, within)
        number = ir.VectorType(I8 if out.dtype == types.uint8 else I16, AT_ONCE)
        start = address(context, builder, out, out_at, at, number)
        builder.store(builder.trunc(builder.add(within, added), number), start, align=1)
        fine = builder.and_(
            builder.fcmp_ordered("==", builder.sitofp(found, floats), scaled),
            builder.icmp_signed("==", within, step),
        )
        return builder.zext(builder.bitcast(fine, ir.IntType(AT_ONCE)), I32)

    one = types.int32
    given = weights, types.intp, types.float32, one, one, one, one, out
    return one(*given), codegen


@kernel
def whole(
    weights: NDArray[np.float32],
    factor: np.float32,
    mask: np.int32,
    least: np.int32,
    most: np.int32,
    offset: np.int32,
    out: NDArray[Any],
) -> bool:
    """Convert the weights of a row to integers, plus `offset`; return True if all of them are
    integers from `least` to `most`. factor: makes weights integers; mask: the bits of an integer
    that are the weight, not its minimum.
    """
    fine = ALL
    for i in range(0, len(weights), AT_ONCE):
        fine &= whole_at(weights, i, factor, mask, least, most, offset, out)
    return bool(fine == ALL)


@kernel
def steps_of_rows(
    unpack: int,
    raw: NDArray[np.uint8],
    mask: NDArray[np.uint8],
    instead: NDArray[np.uint8],
    at: int,
    shift: int,
    factor: np.float32,
    limits: Any,
    steps: NDArray[Any],
    scales: NDArray[np.float32],
    minima: NDArray[np.float32],
) -> bool:
    """Write steps, scales and minima of rows; return False if a row has no such integer form.

    raw: the rows. mask: the bits to keep of a row's bytes; `instead` replaces its scales, which are
    halves at offset `at` of each block. shift: if groups have minima, each weight is step +
    (minimum << shift). factor, limits: see `whole`. minima: (rows, groups); 0 groups: no minima.
    """
    masked, weights = np.empty(mask.size, np.uint8), np.empty(steps.shape[1], np.float32)
    blocks, groups = scales.shape[1], minima.shape[1]
    bits, fine = np.int32((1 << shift) - 1 if groups else -1), True
    for r in range(len(minima)):
        row = raw[r * mask.size : (r + 1) * mask.size]
        prefetch(raw, r * mask.size, mask.size)
        for i in range(mask.size):
            masked[i] = (row[i] & mask[i]) | instead[i]
        unpack_at(unpack, masked, weights)
        fine &= whole(weights, factor, bits, limits[0], limits[1], limits[2], steps[r])
        for i in range(blocks):
            scales[r, i] = half_at(row, i * (mask.size // blocks) + at) / factor
            fine &= np.isfinite(scales[r, i])
        for g in range(groups):
            first = np.int32(weights[g * (len(weights) // groups)] * factor)
            minima[r, g] = np.float32(first >> shift)
    return fine
