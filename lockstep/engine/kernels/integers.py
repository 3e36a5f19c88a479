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

from lockstep.engine.kernels.lanes import compiled_as, kernel, spread
from lockstep.engine.kernels.vectors import (
    F64,
    I16,
    I32,
    address,
    filled,
    joined,
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


def features_of(context: Any) -> set[str]:
    """What an x86 processor can do, as LLVM names it; of others nothing."""
    triple, _, features = context.codegen().magic_tuple()
    return set(features.split(",")) if triple.startswith(("x86", "i686")) else set()


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
