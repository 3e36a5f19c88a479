"""Products of matrices of integers, with a scale for each run of integers. The sum of a run is
exact in any order of additions; only sums over runs are rounded.

Integers have 16 or 8 bits, and sums have 32; the caller makes sure that sums fit. A vector register
holds sixteen tokens side by side; two or four integers of each token are multiplied at once.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numpy.typing import NDArray

from lockstep.engine.kernels.lanes import compiled_as, kernel, uint32s_at
from lockstep.engine.kernels.vectors import (
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    address,
    fill_vector,
    join_vectors,
    same,
)

TOKENS = 16  # number of tokens in a vector register
ROWS = 8  # rows of weights that are multiplied before the tokens are read again


@compiled_as
def sums_of_run(
    typing: Any, start: Any, words: Any, at: Any, columns: Any, steps: Any, at_steps: Any,
    apart: Any, size: Any,
) -> Any:  # fmt: skip
    """Return 16 lanes for each of eight rows: start + the products of `size` words with each lane's
    steps.

    Words have 32 bits: two int16, or four int8; the int8 of a row's words are unsigned. Rows begin
    at words[at], `columns` apart. A row's first word is multiplied by the steps from
    steps[at_steps] on, each later word by the steps `apart` further.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found, _ = of_eight_rows(context, builder, words, steps, args, sizes=False)
        return context.make_tuple(builder, signature.return_type, found)

    at = types.intp
    given = start, words, at, at, steps, at, at, at
    return types.UniTuple(start, ROWS)(*given), codegen


@compiled_as
def sums_and_sizes_of_run(
    typing: Any, start: Any, words: Any, at: Any, columns: Any, steps: Any, at_steps: Any,
    apart: Any, size: Any,
) -> Any:  # fmt: skip
    """Return `sums_of_run`, followed by the sums of the products' magnitudes of each row.

    Bytes of a row's words are unsigned, with 128 added; magnitudes are those of the numbers without
    this 128.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        sums, sizes = of_eight_rows(context, builder, words, steps, args, sizes=True)
        return context.make_tuple(builder, signature.return_type, sums + sizes)

    at = types.intp
    given = start, words, at, at, steps, at, at, at
    return types.UniTuple(start, 2 * ROWS)(*given), codegen


def of_eight_rows(
    context: Any, builder: Any, words: Any, steps: Any, args: Any, *, sizes: bool
) -> tuple[list[Any], list[Any]]:
    """Return the sums, and the sums of magnitudes if `sizes` is true."""
    start, _, at, columns, _, at_steps, apart, size = args
    several = add_pairs if steps.dtype == types.int16 else added_bytes
    # number for which there are registers, in addition to those for the factors
    at_once = ROWS if "+avx512f" in features_of(context) else ROWS // (4 if sizes else 2)
    found: list[Any] = []
    far: list[Any] = []
    while len(found) < ROWS:
        sums = [cgutils.alloca_once(builder, start.type) for _ in range(at_once)]
        more = [cgutils.alloca_once(builder, start.type) for _ in sums if sizes]
        for place in sums:
            builder.store(start, place)
        for place in more:
            builder.store(same(start.type, 0), place)
        with cgutils.for_range(builder, size) as loop:
            lane = builder.add(at_steps, builder.mul(apart, loop.index))
            lanes = address(context, builder, steps, args[4], lane, start.type)
            lanes = builder.load(lanes, align=4)
            for i, place in enumerate(sums):
                row = builder.mul(columns, ir.Constant(I64, len(found) + i))
                row = builder.add(builder.add(at, row), loop.index)
                word = builder.load(address(context, builder, words, args[1], row, I32))
                word = fill_vector(builder, word, TOKENS)
                builder.store(several(context, builder, builder.load(place), lanes, word), place)
                if sizes:
                    sides = magnitudes(builder, steps.dtype, lanes, word)
                    sums_so_far = builder.load(more[i])
                    builder.store(several(context, builder, sums_so_far, *sides), more[i])
        found += [builder.load(place) for place in sums]
        far += [builder.load(place) for place in more]
    return found, far


def magnitudes(builder: Any, dtype: Any, signed: Any, word: Any) -> tuple[Any, Any]:
    """Return the magnitudes of the integers in 16 lanes of 32 bits.

    Bytes of `word` are stored with 128 added. Magnitudes are unsigned, because 128 can occur.
    """
    kind = I16 if dtype == types.int16 else I8
    wide = ir.VectorType(kind, TOKENS * 32 // kind.width)
    a, b = builder.bitcast(signed, wide), builder.bitcast(word, wide)
    if kind == I8:
        b = builder.xor(b, same(wide, -128))
    found = ir.FunctionType(wide, [wide, ir.IntType(1)])
    name = f"llvm.abs.v{wide.count}i{kind.width}"
    function = cgutils.get_or_insert_function(builder.module, found, name)
    wraps = ir.Constant(ir.IntType(1), 0)
    one, other = (builder.call(function, [v, wraps]) for v in (a, b))
    return builder.bitcast(one, signed.type), builder.bitcast(other, signed.type)


def add_pairs(context: Any, builder: Any, sums: Any, a: Any, b: Any) -> Any:
    """Return sums plus products of 16-bit integers, two products to a lane."""
    if sums_products(context):
        return by_name(builder, "llvm.x86.avx512.vpdpwssd.512", sums, a, b)
    wide = ir.VectorType(I16, 32)
    a, b = builder.bitcast(a, wide), builder.bitcast(b, wide)
    return builder.add(sums, multiply_pairs(context, builder, a, b))


def added_bytes(context: Any, builder: Any, sums: Any, signed: Any, unsigned: Any) -> Any:
    """Return sums plus products of bytes, four products to a lane."""
    if sums_products(context):
        return by_name(builder, "llvm.x86.avx512.vpdpbusd.512", sums, unsigned, signed)
    wide = ir.VectorType(I16, 32)
    signed, unsigned = builder.bitcast(signed, wide), builder.bitcast(unsigned, wide)
    codes, eight = same(wide, 255), same(wide, 8)
    even = builder.and_(unsigned, codes), builder.ashr(builder.shl(signed, eight), eight)
    odd = builder.lshr(unsigned, eight), builder.ashr(signed, eight)
    for a, b in (even, odd):
        sums = builder.add(sums, multiply_pairs(context, builder, a, b))
    return sums


def sums_products(context: Any) -> bool:
    triple, _, features = context.codegen().magic_tuple()
    return triple.startswith("x86") and "+avx512vnni" in features


def multiply_pairs(context: Any, builder: Any, a: Any, b: Any) -> Any:
    """Multiply 32 or 16 integers of 16 bits, and add neighbouring products -> half as many sums of
    32 bits."""
    features, count = features_of(context), a.type.count
    if "+avx512bw" in features and count == 32:
        return by_name(builder, "llvm.x86.avx512.pmaddw.d.512", a, b)
    if "+avx2" in features:
        parts = [
            by_name(builder, "llvm.x86.avx2.pmadd.wd", part(builder, a, i), part(builder, b, i))
            for i in range(count // 16)
        ]
        return parts[0] if count == 16 else join_vectors(builder, *parts)
    even, odd = (
        [builder.sext(every_other(builder, v, i), ir.VectorType(I32, count // 2)) for v in (a, b)]
        for i in (0, 1)
    )
    return builder.add(builder.mul(*even), builder.mul(*odd))


def by_name(builder: Any, name: str, *args: Any, to: Any = I32) -> Any:
    """Call a processor's instruction by name; the result is as wide as the last argument."""
    bits = args[-1].type.element.width * args[-1].type.count
    kind = ir.FunctionType(ir.VectorType(to, bits // to.width), [v.type for v in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def part(builder: Any, vector: Any, i: int) -> Any:
    order = ir.Constant(ir.VectorType(I32, 16), list(range(16 * i, 16 * i + 16)))
    return builder.shuffle_vector(vector, vector, order)


def every_other(builder: Any, vector: Any, first: int) -> Any:
    order = ir.Constant(
        ir.VectorType(I32, vector.type.count // 2), list(range(first, vector.type.count, 2))
    )
    return builder.shuffle_vector(vector, vector, order)


def features_of(context: Any) -> set[str]:
    """Return the features of an x86 processor by LLVM's names; none for other processors."""
    triple, _, features = context.codegen().magic_tuple()
    return set(features.split(",")) if triple.startswith(("x86", "i686")) else set()


@compiled_as
def add_scaled(
    typing: Any, out: Any, at: Any, apart: Any, sums: Any, scales: Any, at_scales: Any, by: Any,
    at_by: Any, by_apart: Any,
) -> Any:  # fmt: skip
    """Add scaled sums: out[at : at + 16] += sums of the first row times 16 scales and by[at_by].
    Each next row lies `apart` elements further in `out`, and `by_apart` elements further in `by`.
    out and scales are float64, or both float32.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, at, apart, sums, _, at_scales, _, at_by, by_apart = args
        kind = F64 if out.dtype == types.float64 else F32
        wide = ir.VectorType(kind, TOKENS)
        scales_at = address(context, builder, scales, args[4], at_scales, wide)
        shared = builder.load(scales_at, align=4)
        for i in range(ROWS):
            place = builder.add(at_by, builder.mul(by_apart, ir.Constant(I64, i)))
            factor = builder.load(address(context, builder, by, args[6], place, F32))
            factor = builder.fpext(factor, F64) if kind == F64 else factor
            scale = builder.fmul(shared, fill_vector(builder, factor, TOKENS))
            row = builder.sitofp(builder.extract_value(sums, i), wide)
            place = builder.add(at, builder.mul(apart, ir.Constant(I64, i)))
            to = address(context, builder, out, args[0], place, wide)
            found = builder.fadd(builder.load(to, align=4), builder.fmul(row, scale))
            builder.store(found, to, align=4)
        return context.get_dummy_value()

    at = types.intp
    return types.void(out, at, at, sums, scales, at, by, at, at), codegen


@kernel
def products(
    words: NDArray[np.int32],
    weight_scales: NDArray[np.float32],
    steps: NDArray[Any],
    starts: NDArray[np.int32],
    scales: NDArray[np.float64],
    out: NDArray[np.float64],
    magnitudes_of_scales: NDArray[np.float32],
    sizes: NDArray[np.float64],
) -> None:
    """Add the products to out, and the sums of their magnitudes to sizes, unless sizes is empty.

    words: (rows, columns / 2 or 4), each with two integers of 16 bits or four unsigned bytes;
    weight_scales: (rows, runs or fewer); steps: (runs, words of a run, tokens, 2 or 4), of int16 or
    int8; starts: (runs, tokens), the initial sums; scales: (runs, tokens), none below zero; out:
    (rows, tokens). The number of rows is a multiple of 8, the number of tokens a multiple of 16.
    """
    runs, size, tokens, per = steps.shape
    rows, columns, blocks = len(words), words.shape[1], weight_scales.shape[1]
    shared, apart = runs // blocks, tokens * per
    steps, starts, scales = steps.reshape(-1), starts.reshape(-1), scales.reshape(-1)
    words, by, to = words.reshape(-1), weight_scales.reshape(-1), out.reshape(-1)
    sized, far, to_sizes = len(sizes) > 0, magnitudes_of_scales.reshape(-1), sizes.reshape(-1)
    for r in range(0, rows, ROWS):
        for t in range(0, tokens, TOKENS):
            for run in range(runs):
                s, at, step = (
                    run * tokens + t,
                    r * columns + run * size,
                    run * size * apart + t * per,
                )
                start = uint32s_at(starts, s, TOKENS)
                block, place = r * blocks + run // shared, r * tokens + t
                if sized:
                    both = sums_and_sizes_of_run(
                        start, words, at, columns, steps, step, apart, size
                    )
                    sums, more = both[:ROWS], both[ROWS:]
                    add_scaled(to_sizes, place, tokens, more, scales, s, far, block, blocks)
                else:
                    sums = sums_of_run(start, words, at, columns, steps, step, apart, size)
                add_scaled(to, place, tokens, sums, scales, s, by, block, blocks)


@kernel
def largest_of(bits: NDArray[np.int64]) -> Any:
    """Return the largest magnitude, as bits, or a NaN if there is one. Bits have the same order as
    magnitudes, and a processor compares many integers at once in any order.
    """
    most = np.int64(0)
    for i in range(len(bits)):
        most = max(most, bits[i] & np.int64(0x7FFFFFFFFFFFFFFF))
    return most


@kernel
def steps_of(
    values: NDArray[np.float64],
    most: float,
    offset: int,
    steps: NDArray[Any],
    starts: NDArray[np.int32],
    scales: NDArray[np.float64],
    rest: NDArray[np.bool_],
) -> None:
    """Write steps, starts and scales for `products`, and mark in `rest` the columns without steps.

    values: (tokens, columns); the largest of each run is `most` times its scale. offset: the number
    added to the weights' integers. A scale must be exactly a float32, and a value exactly a
    multiple of its scale: nothing is rounded.
    """
    runs, words, _, per = steps.shape
    n, largest = words * per, np.empty(1, np.int64)
    found = np.empty(n, steps.dtype)
    for t in range(values.shape[0]):
        for run in range(runs):
            block, start = values[t, run * n : run * n + n], run * n
            largest[0] = largest_of(block.view(np.int64))
            scale = np.float64(np.float32(largest.view(np.float64)[0] / most))
            scales[run, t] = scale
            by, fine = 1.0 / scale if scale > 0.0 else 0.0, True
            for i in range(n):
                step = np.rint(block[i] * by)
                same = step * scale == block[i]
                found[i] = np.int16(step if same else 0.0)
                fine &= same
            added = np.int32(0)
            for i in range(n):
                added += np.int32(found[i])
            starts[run, t] = -offset * added
            for i in range(0 if fine else n):
                rest[start + i] |= found[i] * scale != block[i]
            for i in range(words):
                for k in range(per):
                    steps[run, i, t, k] = found[i * per + k]
