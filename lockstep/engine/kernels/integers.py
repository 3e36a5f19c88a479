"""Products of matrices whose numbers are integers times a scale for each run of them: the sums of
a run are exact, in whatever order a processor adds, and only sums of runs are rounded.

Integers are of 16 bits and sums of 32, whose room the caller has seen to. Tokens lie side by side
in a vector register, sixteen of them; of each two integers in a row are multiplied at once.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numpy.typing import NDArray

from lockstep.engine.kernels.lanes import Lanes, compiled_as, kernel, spread, written
from lockstep.engine.kernels.vectors import (
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    address,
    filled,
    joined,
    number,
    same,
)

TOKENS = 16  # in a vector register
ROWS = 8  # of weights that are multiplied by them before they are read again
NOTHING = np.int32(0)


@compiled_as
def add_pairs(typing: Any, sums: Any, steps: Any, at: Any, pair: Any) -> Any:
    """sums + a * x + b * y: pair is (a, b) in 32 bits, steps[at : at + 32] (x, y) of each lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.VectorType(I16, 32)
        start = address(context, builder, steps, args[1], args[2], wide)
        both = builder.bitcast(filled(builder, args[3], 16), wide)
        found = multiplied(context, builder, builder.load(start, align=4), both)
        return builder.add(args[0], found)

    return sums(sums, steps, types.intp, types.int32), codegen


def multiplied(context: Any, builder: Any, a: Any, b: Any) -> Any:
    """Integers of 16 bits, 32 or 16 -> half as many of 32: products, the two of a pair added."""
    features, count = features_of(context), a.type.count
    if "+avx512bw" in features and count == 32:
        return by_name(builder, "llvm.x86.avx512.pmaddw.d.512", a, b, I32)
    if "+avx2" in features:
        parts = [
            by_name(
                builder, "llvm.x86.avx2.pmadd.wd", part(builder, a, i), part(builder, b, i), I32
            )
            for i in range(count // 16)
        ]
        return parts[0] if count == 16 else joined(builder, *parts)
    even, odd = (
        [builder.sext(every_other(builder, v, i), ir.VectorType(I32, count // 2)) for v in (a, b)]
        for i in (0, 1)
    )
    return builder.add(builder.mul(*even), builder.mul(*odd))


def by_name(builder: Any, name: str, a: Any, b: Any, to: Any) -> Any:
    kind = ir.FunctionType(ir.VectorType(to, a.type.count // 2), (a.type, b.type))
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), (a, b))


def part(builder: Any, vector: Any, i: int) -> Any:
    order = ir.Constant(ir.VectorType(I32, 16), list(range(16 * i, 16 * i + 16)))
    return builder.shuffle_vector(vector, vector, order)


def every_other(builder: Any, vector: Any, first: int) -> Any:
    order = ir.Constant(
        ir.VectorType(I32, vector.type.count // 2), list(range(first, vector.type.count, 2))
    )
    return builder.shuffle_vector(vector, vector, order)


@compiled_as
def add_bytes(typing: Any, sums: Any, steps: Any, x: Any, at: Any) -> Any:
    """sums of 8 lanes + products of 32 steps, 0 to 255, with as many int8; four go to a lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        w, y = bytes_of(context, builder, steps, x, args[1:])
        if {"+avx512vnni", "+avx512vl"} <= features_of(context):
            name, eight = "llvm.x86.avx512.vpdpbusd.256", args[0].type
            kind = ir.FunctionType(eight, [eight] * 3)
            add = cgutils.get_or_insert_function(builder.module, kind, name)
            return builder.call(add, (args[0], *(builder.bitcast(v, eight) for v in (w, y))))
        wide = ir.VectorType(I16, 32)
        pairs = multiplied(context, builder, builder.zext(w, wide), builder.sext(y, wide))
        return builder.add(args[0], added(builder, pairs, range(0, 16, 2), range(1, 16, 2)))

    return sums(sums, steps, x, types.intp), codegen


@compiled_as
def add_scaled_bytes(typing: Any, sums: Any, steps: Any, x: Any, at: Any, scales: Any) -> Any:
    """As add_bytes, each two products times a scale, an int16 or 16 of them. Steps below 128."""
    lanes = Lanes("short", 16)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        w, y = bytes_of(context, builder, steps, x, args[1:])
        if "+avx2" in features_of(context):
            pairs = by_name(builder, "llvm.x86.avx2.pmadd.ub.sw", w, y, I16)
        else:
            wide = ir.VectorType(I16, 32)
            each = builder.mul(builder.zext(w, wide), builder.sext(y, wide))
            pairs = added(builder, each, range(0, 32, 2), range(1, 32, 2))
        scale = args[4] if isinstance(scales, Lanes) else filled(builder, args[4], 16)
        return builder.add(args[0], multiplied(context, builder, pairs, scale))

    scales = lanes if isinstance(scales, Lanes) else types.int16
    return sums(sums, steps, x, types.intp, scales), codegen


def bytes_of(context: Any, builder: Any, steps: Any, x: Any, args: Any) -> tuple[Any, Any]:
    """Of steps their lowest bytes, and as many of x from a place on."""
    narrow = ir.VectorType(I8, steps.count)
    start = address(context, builder, x, args[1], args[2], narrow)
    return builder.trunc(args[0], narrow), builder.load(start, align=1)


def features_of(context: Any) -> set[str]:
    """What an x86 processor can do, as LLVM names it; of others nothing."""
    triple, _, features = context.codegen().magic_tuple()
    return set(features.split(",")) if triple.startswith(("x86", "i686")) else set()


@compiled_as
def first_lane(typing: Any, value: Any, count: Any) -> Any:
    """An integer, and zeros behind it: what sums begin with."""
    lanes = Lanes("int", written(count))

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.insert_element(same(lanes.vector, 0), args[0], number(0))

    return lanes(types.int32, count), codegen


@compiled_as
def total(typing: Any, lanes: Any) -> Any:
    """Of all lanes: the two halves of them are added again and again."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found, add = args[0], builder.add if lanes.kind == "int" else builder.fadd
        while found.type.count > 2:
            half = found.type.count // 2
            sides = (
                ir.Constant(ir.VectorType(I32, half), list(range(first, first + half)))
                for first in (0, half)
            )
            found = add(*(builder.shuffle_vector(found, found, side) for side in sides))
        return add(*(builder.extract_element(found, number(i)) for i in (0, 1)))

    return lanes.scalar(lanes), codegen


@compiled_as
def totals(typing: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """The total of each, 8 integers, as four lanes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, b, c, d = args
        # within each half: two of the one, two of the other
        even, odd = (0, 2, 8, 10, 4, 6, 12, 14), (1, 3, 9, 11, 5, 7, 13, 15)
        ab, cd = (added(builder, *two, even, odd) for two in ((a, b), (c, d)))
        return added(builder, added(builder, ab, cd, even, odd), range(4), range(4, 8))

    return Lanes("int", 4)(a, b, c, d), codegen


def added(builder: Any, *parts: Any) -> Any:
    """One vector or two side by side, and two choices of their lanes, which are added."""
    *vectors, left, right = parts
    orders = (ir.Constant(ir.VectorType(I32, len(s)), list(s)) for s in (left, right))
    sides = (builder.shuffle_vector(vectors[0], vectors[-1], order) for order in orders)
    return builder.add(*sides)


@compiled_as
def add_run(
    typing: Any, out: Any, steps: Any, at_steps: Any, apart: Any, x: Any, at_x: Any, pairs: Any,
    dx: Any, at_dx: Any, scales: Any, at_scales: Any, scales_apart: Any,
) -> Any:  # fmt: skip
    """out: (8, 16) float32 += exact sums of a run of 8 rows times 16 tokens, times both scales.

    steps: rows `apart`, pairs of int16; x: (pairs, 16, 2); dx: (16,); scales: `scales_apart`.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (_, _, at_steps, apart, _, at_x, pairs, _, at_dx, _, at_scales, scales_apart) = args
        wide, sums_of, floats = (
            ir.VectorType(I16, 32),
            ir.VectorType(I32, 16),
            ir.VectorType(F32, 16),
        )
        sums = [cgutils.alloca_once_value(builder, same(sums_of, 0)) for _ in range(ROWS)]
        for place in sums:
            builder.store(same(sums_of, 0), place)
        rows = [builder.add(at_steps, builder.mul(apart, ir.Constant(I64, j))) for j in range(ROWS)]
        starts = [address(context, builder, steps, args[1], at, I32) for at in rows]
        tokens = address(context, builder, x, args[4], at_x, wide)
        with cgutils.for_range(builder, pairs) as loop:
            side = builder.load(builder.gep(tokens, [loop.index]), align=2)
            for start, place in zip(starts, sums, strict=True):
                pair = builder.load(builder.gep(start, [loop.index]), align=2)
                both = builder.bitcast(filled(builder, pair, 16), wide)
                found = multiplied(context, builder, side, both)
                builder.store(builder.add(builder.load(place), found), place)
        by = builder.load(address(context, builder, dx, args[7], at_dx, floats), align=4)
        for j, place in enumerate(sums):
            at = builder.add(at_scales, builder.mul(scales_apart, ir.Constant(I64, j)))
            scale = builder.load(address(context, builder, scales, args[9], at, F32), align=4)
            scale = builder.fmul(filled(builder, scale, 16), by)
            found = builder.fmul(builder.sitofp(builder.load(place), floats), scale)
            to = address(context, builder, out, args[0], ir.Constant(I64, 16 * j), floats)
            builder.store(builder.fadd(builder.load(to, align=4), found), to, align=4)
        return context.get_dummy_value()

    at = types.intp
    return types.void(out, steps, at, at, x, at, at, dx, at, scales, at, at), codegen


@compiled_as
def add_scaled(
    typing: Any, out: Any, at: Any, sums: Any, scales: Any, at_scale: Any, by: Any
) -> Any:
    """out[at : at + 16] += scales[at_scale : at_scale + 16] * by * sums, all but sums float64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.VectorType(F64, sums.count)
        to = address(context, builder, out, args[0], args[1], wide)
        scale = builder.load(address(context, builder, scales, args[3], args[4], wide), align=8)
        scale = builder.fmul(scale, filled(builder, args[5], sums.count))
        found = builder.fmul(builder.sitofp(args[2], wide), scale)
        builder.store(builder.fadd(builder.load(to, align=8), found), to, align=8)
        return context.get_dummy_value()

    kinds = out, types.intp, sums, scales, types.intp, types.float64
    return types.void(*kinds), codegen


@kernel
def products(
    pairs: NDArray[np.int32],
    weight_scales: NDArray[np.float32],
    steps: NDArray[np.int16],
    scales: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None:
    """out += the products.

    pairs: (rows, columns / 2), two integers of 16 bits each; weight_scales: (rows, runs or fewer);
    steps: (runs, columns of a run / 2, tokens, 2); scales: (runs, tokens); out: (rows, tokens).
    Rows are a multiple of 8, tokens of 16.
    """
    runs, half, tokens = steps.shape[0], steps.shape[1], steps.shape[2]
    shared = runs // weight_scales.shape[1]
    flat, flat_scales, to = steps.reshape(-1), scales.reshape(-1), out.reshape(-1)
    for r in range(0, pairs.shape[0], ROWS):
        for t in range(0, tokens, TOKENS):
            for run in range(runs):
                at = (run * half * tokens + t) * 2
                a = b = c = d = e = f = g = h = spread(NOTHING, 16)
                for i in range(run * half, run * half + half):
                    a = add_pairs(a, flat, at, pairs[r, i])
                    b = add_pairs(b, flat, at, pairs[r + 1, i])
                    c = add_pairs(c, flat, at, pairs[r + 2, i])
                    d = add_pairs(d, flat, at, pairs[r + 3, i])
                    e = add_pairs(e, flat, at, pairs[r + 4, i])
                    f = add_pairs(f, flat, at, pairs[r + 5, i])
                    g = add_pairs(g, flat, at, pairs[r + 6, i])
                    h = add_pairs(h, flat, at, pairs[r + 7, i])
                    at += 2 * tokens
                s, x, y = run * tokens + t, run // shared, r * tokens + t
                add_scaled(to, y, a, flat_scales, s, np.float64(weight_scales[r, x]))
                add_scaled(to, y + tokens, b, flat_scales, s, np.float64(weight_scales[r + 1, x]))
                add_scaled(
                    to, y + 2 * tokens, c, flat_scales, s, np.float64(weight_scales[r + 2, x])
                )
                add_scaled(
                    to, y + 3 * tokens, d, flat_scales, s, np.float64(weight_scales[r + 3, x])
                )
                add_scaled(
                    to, y + 4 * tokens, e, flat_scales, s, np.float64(weight_scales[r + 4, x])
                )
                add_scaled(
                    to, y + 5 * tokens, f, flat_scales, s, np.float64(weight_scales[r + 5, x])
                )
                add_scaled(
                    to, y + 6 * tokens, g, flat_scales, s, np.float64(weight_scales[r + 6, x])
                )
                add_scaled(
                    to, y + 7 * tokens, h, flat_scales, s, np.float64(weight_scales[r + 7, x])
                )


@kernel
def steps_of(
    values: NDArray[np.float64],
    most: float,
    steps: NDArray[np.int16],
    scales: NDArray[np.float64],
    rest: NDArray[np.bool_],
) -> None:
    """values: (tokens, columns), of which the largest of each run is `most` times its scale ->
    steps and scales as `products` takes them, and the columns in which some value is none of these.

    A scale must be a float32 and a value its multiple exactly: none is rounded here.
    """
    runs, half = steps.shape[0], steps.shape[1]
    for t in range(values.shape[0]):
        for run in range(runs):
            start, largest = run * 2 * half, 0.0
            for i in range(start, start + 2 * half):
                largest = max(largest, abs(values[t, i]))
            scale = np.float64(np.float32(largest / most))
            scales[run, t] = scale
            by = 1.0 / scale if scale > 0.0 else 0.0
            for i in range(2 * half):
                value = values[t, start + i]
                step = np.rint(value * by)
                if step * scale == value:
                    steps[run, i // 2, t, i % 2] = np.int16(step)
                else:
                    steps[run, i // 2, t, i % 2] = 0
                    rest[start + i] = True


@kernel
def whole(
    weights: NDArray[np.float32],
    factor: np.float32,
    base: int,
    most: int,
    out: NDArray[np.int16],
    minima: NDArray[np.float32],
) -> bool:
    """weights: (rows, columns) -> themselves as integers, if all are, and none is beyond `most`.

    factor: what makes them integers; base: where there are minima of groups, each weight is
    step + base * minimum, and this splits them; 0: there are none. minima: (rows, groups).
    """
    fine = True
    columns = weights.shape[1]
    for r in range(weights.shape[0]):
        for i in range(columns):
            scaled = weights[r, i] * factor
            step = np.int32(scaled)
            fine &= np.float32(step) == scaled
            if base:
                step &= base - 1
            fine &= abs(step) <= most
            out[r, i] = step
        if base:
            group = columns // minima.shape[1]
            for g in range(minima.shape[1]):
                minima[r, g] = np.float32(np.int32(weights[r, g * group] * factor) // base)
    return fine
