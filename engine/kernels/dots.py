"""Sums of products in vector registers: exact sums for bytes, and sums for scaled bytes."""

from typing import Any

from llvmlite import ir
from numba import types

from lockstep.engine.kernels.integers import by_name, features_of, multiply_pairs
from lockstep.engine.kernels.lanes import (
    Lanes,
    as_constant,
    compiled_as,
    floats_at,
    halves_at,
    load_of,
)
from lockstep.engine.kernels.vectors import (
    F32,
    I8,
    I16,
    I32,
    I64,
    address,
    as_it_is,
    half,
    join_vectors,
    number,
    pack_vector,
    same,
)

WIDE = ir.VectorType(I16, 32)
ints_at = load_of(I32, as_it_is, "int")  # loads from an array of int32


@compiled_as
def as_short(typing: Any, lanes: Any) -> Any:
    """Return the lowest 16 bits of each integer."""
    narrow = Lanes("short", lanes.count)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.trunc(args[0], narrow.vector)

    return narrow(lanes), codegen


@compiled_as
def add_bytes(typing: Any, sums: Any, steps: Any, x: Any, at: Any) -> Any:
    """Add the products of 32 steps (0 to 127) and 32 int8 to 8 lanes, four products to a lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return fours(context, builder, args[0], *bytes_of(context, builder, steps, x, args[1:]))

    return sums(sums, steps, x, types.intp), codegen


@compiled_as
def signed_products(typing: Any, steps: Any, x: Any, at: Any, added_up: Any) -> Any:
    """Return the products of 32 steps (-128 to 127) and 32 int8 (-127 to 127), four in each of 8
    lanes. added_up: the sum of these int8. The int8 -128 is excluded: as in ggml on the same
    processor, negating it would leave it negative.
    """
    lanes = Lanes("int", 8)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        w, y = bytes_of(context, builder, steps, x, args[:3])
        nothing, least = same(lanes.vector, 0), same(w.type, -128)
        if has_vnni(context):  # VNNI multiplies unsigned with signed bytes
            offset = builder.mul(args[3], ir.Constant(I32, -128))
            sums = builder.insert_element(nothing, offset, number(0))
            return fours(context, builder, sums, builder.xor(w, least), y)
        # so does AVX2: it gets magnitudes, and the signs move to the other factors
        if "+avx2" in features_of(context):
            y = by_name(builder, "llvm.x86.avx2.psign.b", y, w, to=I8)
            negative = builder.icmp_signed("<", w, same(w.type, 0))
            w = builder.select(negative, builder.neg(w), w)
            return fours(context, builder, nothing, w, y)
        found = multiply_pairs(context, builder, *(builder.sext(v, WIDE) for v in (w, y)))
        return add_lanes(builder, found, range(0, 16, 2), range(1, 16, 2))

    return lanes(steps, x, types.intp, types.int32), codegen


@compiled_as
def add_scaled_bytes(
    typing: Any, sums: Any, steps: Any, more: Any, x: Any, at: Any, scales: Any
) -> Any:
    """Return sums (8 lanes) plus scaled products of steps and int8. steps, more: 32 steps each,
    below 64. Four products share a scale. scales: in the order of `four_of`, for the first half of
    `steps`, the first half of `more`, the second half of `steps`, and the second half of `more`.
    """
    packed_lanes = Lanes("short", 16)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found, nothing = [], same(args[0].type, 0)
        for i, side in enumerate(args[1:3]):
            place = builder.add(args[4], ir.Constant(I64, 32 * i))
            w, y = bytes_of(context, builder, steps, x, (side, args[3], place))
            found.append(fours(context, builder, nothing, w, y))
        # 4 * 63 * 128 fits into 16 bits
        if "+avx2" in features_of(context):
            shorts = by_name(builder, "llvm.x86.avx2.packssdw", *found, to=I16)
        else:
            order = [lane + 4 * half for half in (0, 1) for lane in (0, 1, 2, 3, 8, 9, 10, 11)]
            order = ir.Constant(ir.VectorType(I32, 16), order)
            shorts = builder.trunc(builder.shuffle_vector(*found, order), packed_lanes.vector)
        # by name, because LLVM would otherwise join the separate sums into one chain
        if has_vnni(context):
            factors = (builder.bitcast(v, args[0].type) for v in (shorts, args[5]))
            return by_name(builder, "llvm.x86.avx512.vpdpwssd.256", args[0], *factors)
        return builder.add(args[0], multiply_pairs(context, builder, shorts, args[5]))

    return sums(sums, steps, more, x, types.intp, packed_lanes), codegen


def fours(context: Any, builder: Any, sums: Any, w: Any, y: Any) -> Any:
    """Return sums plus products of bytes, four products to a lane. w is unsigned. Without
    `has_vnni`, the sum of two neighbouring products must fit into 16 bits.
    """
    if has_vnni(context):
        sides = (builder.bitcast(v, sums.type) for v in (w, y))
        return by_name(builder, "llvm.x86.avx512.vpdpbusd.256", sums, *sides)
    if "+avx2" in features_of(context):
        pairs = by_name(builder, "llvm.x86.avx2.pmadd.ub.sw", w, y, to=I16)
        return builder.add(sums, multiply_pairs(context, builder, pairs, same(pairs.type, 1)))
    pairs = multiply_pairs(context, builder, builder.zext(w, WIDE), builder.sext(y, WIDE))
    return builder.add(sums, add_lanes(builder, pairs, range(0, 16, 2), range(1, 16, 2)))


@compiled_as
def in_order(typing: Any) -> Any:
    """Prevent LLVM from moving reads across this call, because it would then run out of
    registers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("acq_rel", "singlethread")
        return context.get_dummy_value()

    return types.void(), codegen


def has_vnni(context: Any) -> bool:
    return {"+avx512vnni", "+avx512vl"} <= features_of(context)


@compiled_as
def twice(typing: Any, lanes: Any, first: Any) -> Any:
    """Return the lowest 16 bits of eight integers from lane `first` on, followed by a copy of
    them."""
    wide = Lanes("short", 16)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        short = builder.trunc(args[0], ir.VectorType(I16, lanes.count))
        places = (builder.add(args[1], ir.Constant(I64, i)) for i in range(8))
        eight = pack_vector(builder, [builder.extract_element(short, place) for place in places])
        both = join_vectors(builder, eight, eight)
        if "+avx2" not in features_of(context):
            return both
        # An empty assembly statement hides from LLVM that both halves are equal. Otherwise LLVM
        # would spread each number over both halves with an instruction that costs more than one
        # within halves.
        kind = ir.FunctionType(both.type, (both.type,))
        return builder.asm(kind, "", "=x,0", [both], False)

    return wide(lanes, types.intp), codegen


@compiled_as
def four_of(typing: Any, lanes: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return lanes a and b of the first half, and c and d of the second half, each repeated four
    times.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        eight = ir.Constant(I64, 8)
        places = *args[1:3], *(builder.add(place, eight) for place in args[3:])
        four = [builder.extract_element(args[0], place) for place in places]
        return pack_vector(builder, [value for value in four for _ in range(4)])

    return lanes(lanes, *[types.intp] * 4), codegen


def bytes_of(context: Any, builder: Any, steps: Any, x: Any, args: Any) -> tuple[Any, Any]:
    """Return the lowest byte of each step, and as many bytes of `x` from the given place on."""
    narrow = ir.VectorType(I8, steps.count)
    start = address(context, builder, x, args[1], args[2], narrow)
    return builder.trunc(args[0], narrow), builder.load(start, align=1)


@compiled_as
def first_lane(typing: Any, value: Any, count: Any) -> Any:
    """Return a vector of one integer and zeros: the start of a sum."""
    lanes = Lanes("int", as_constant(count))

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.insert_element(same(lanes.vector, 0), args[0], number(0))

    return lanes(types.int32, count), codegen


@compiled_as
def total(typing: Any, lanes: Any) -> Any:
    """Return the sum of all lanes, by adding their two halves until one lane is left."""

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
    """Return the totals of four vectors, 8 integers each, as four lanes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, b, c, d = args
        # lanes at a distance of two, then of four; an addition of neighbours is a slow instruction
        low, high = (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)
        ab, cd = (add_lanes(builder, *two, low, high) for two in ((a, b), (c, d)))
        low, high = (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)
        return add_lanes(builder, add_lanes(builder, ab, cd, low, high), range(4), range(4, 8))

    return Lanes("int", 4)(a, b, c, d), codegen


def add_lanes(builder: Any, *parts: Any) -> Any:
    """Add two selections of lanes from one vector, or from two joined vectors."""
    *vectors, left, right = parts
    orders = (ir.Constant(ir.VectorType(I32, len(s)), list(s)) for s in (left, right))
    sides = (builder.shuffle_vector(vectors[0], vectors[-1], order) for order in orders)
    return builder.add(*sides)


@compiled_as
def stored_at(typing: Any, array: Any, at: Any, count: Any) -> Any:
    """Load floats from an array of float32, or of uint16 with the bits of halves."""
    load = halves_at if array.dtype == types.uint16 else floats_at
    return load._defn(typing, array, at, count)


@compiled_as
def both_halves(typing: Any, lanes: Any) -> Any:
    """Return the two halves of a vector."""
    half = Lanes(lanes.kind, lanes.count // 2)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        parts = []
        for first in (0, half.count):
            order = [number(first + i) for i in range(half.count)]
            order = ir.Constant(ir.VectorType(I32, half.count), order)
            parts.append(builder.shuffle_vector(args[0], args[0], order))
        return context.make_tuple(builder, signature.return_type, parts)

    return types.UniTuple(half, 2)(lanes), codegen


@compiled_as
def four_floats(typing: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return four floats as lanes."""
    lanes = Lanes("float", 4)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return pack_vector(builder, list(args))

    return lanes(*[types.float32] * 4), codegen


@compiled_as
def half_pairs(typing: Any, raw: Any, at: Any, apart: Any) -> Any:
    """Read two adjacent halves at four places, `apart` bytes from each other. Return the first
    halves as lanes, and the second halves as lanes.
    """
    lanes = Lanes("float", 4)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words, place = [], args[1]
        for _ in range(4):
            start = address(context, builder, raw, args[0], place, I32)
            words.append(builder.load(start, align=1))
            place = builder.add(place, args[2])
        bits = builder.bitcast(pack_vector(builder, words), ir.VectorType(I16, 8))
        found = half(context, builder, bits, ir.VectorType(F32, 8))
        parts = []
        for first in (0, 1):
            order = ir.Constant(ir.VectorType(I32, 4), list(range(first, 8, 2)))
            parts.append(builder.shuffle_vector(found, found, order))
        return context.make_tuple(builder, signature.return_type, parts)

    return types.UniTuple(lanes, 2)(raw, types.intp, types.intp), codegen


@compiled_as
def add_side_by_side(typing: Any, sums: Any, a: Any, b: Any) -> Any:
    """Add the lanes of a to the first sum and the lanes of b to the second, one after the other."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = args[0]
        for i in range(a.count):
            order = ir.Constant(ir.VectorType(I32, 2), [i, a.count + i])
            found = builder.fadd(found, builder.shuffle_vector(*args[1:], order))
        return found

    return sums(sums, a, b), codegen


@compiled_as
def no_sums(typing: Any, count: Any) -> Any:
    """Return zeros of float64, which `add_scaled` adds to."""
    lanes = Lanes("double", as_constant(count))

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return same(lanes.vector, 0.0)

    return lanes(count), codegen


@compiled_as
def add_scaled(typing: Any, sums: Any, whole: Any, a: Any, b: Any) -> Any:
    """Return sums + integers * (a * b), in float64, where the product of the two floats is
    exact."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = args[0].type
        by = builder.fmul(*(builder.fpext(factor, wide) for factor in args[2:]))
        return builder.fadd(args[0], builder.fmul(builder.sitofp(args[1], wide), by))

    return sums(sums, whole, a, b), codegen
