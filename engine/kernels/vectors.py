"""LLVM instructions that implement lanes, for vectors and for scalars alike."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.np.arrayobj import make_array

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()


# --- constants and shapes ----------------------------------------------------------------------


def like(shape: Any, element: Any) -> Any:
    """Return the LLVM type `element`, or a vector of it with the length of `shape`."""
    return ir.VectorType(element, shape.count) if isinstance(shape, ir.VectorType) else element


def same(to: Any, value: Any) -> Any:
    """Return a constant of a scalar or vector type, with `value` in every lane."""
    return ir.Constant(to, [value] * to.count if isinstance(to, ir.VectorType) else value)


def number(index: int) -> ir.Constant:
    return ir.Constant(I32, index)


def fill_vector(builder: Any, value: Any, count: int) -> Any:
    """Return a vector with the same LLVM scalar in every lane."""
    vector = ir.VectorType(value.type, count)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, number(0))
    return builder.shuffle_vector(one, one, same(ir.VectorType(I32, count), 0))


def join_vectors(builder: Any, a: Any, b: Any) -> Any:
    """Join two LLVM vectors of the same length."""
    order = list(range(2 * a.type.count))
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(order)), order))


def pack_vector(builder: Any, values: list[Any]) -> Any:
    vector = ir.Constant(ir.VectorType(values[0].type, len(values)), ir.Undefined)
    for i, value in enumerate(values):
        vector = builder.insert_element(vector, value, number(i))
    return vector


# --- memory ------------------------------------------------------------------------------------


def element_pointer(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    return builder.gep(make_array(kind)(context, builder, array).data, [at])


def address(context: Any, builder: Any, kind: Any, array: Any, at: Any, to: Any) -> Any:
    """Return the address of element `at` of an array, as a pointer to the LLVM type `to`."""
    start = element_pointer(context, builder, kind, array, at)
    return builder.bitcast(start, to.as_pointer())


# --- (context, builder, value, wider type) -> the value in it ----------------------------------


def to_unsigned(context: Any, builder: Any, value: Any, to: Any) -> Any:
    return builder.zext(value, to)


def to_signed(context: Any, builder: Any, value: Any, to: Any) -> Any:
    return builder.sext(value, to)


def as_it_is(context: Any, builder: Any, value: Any, to: Any) -> Any:
    return value


def brain(context: Any, builder: Any, bits: Any, to: Any) -> Any:
    """Convert bfloat16, the upper half of the bits, to float32."""
    wide = like(to, I32)
    return builder.bitcast(builder.shl(builder.zext(bits, wide), same(wide, 16)), to)


def half(context: Any, builder: Any, bits: Any, to: Any) -> Any:
    """Convert IEEE half to float32: exact, also for subnormal and infinite values; NaN stays
    NaN."""
    triple, _, features = context.codegen().magic_tuple()
    if triple.startswith(("x86", "i686")) and "+f16c" not in features:
        return half_by_bits(builder, bits, to)  # LLVM would call a function that is not loaded
    if isinstance(to, ir.VectorType):
        return builder.fpext(builder.bitcast(bits, like(to, ir.HalfType())), to)
    # To load a single F16 number, LLVM uses an instruction that depends on the register's old
    # value, so each block would wait for the previous one. An empty assembly statement hides from
    # LLVM that the number comes from memory.
    number = builder.zext(bits, I32)
    number = builder.asm(ir.FunctionType(I32, (I32,)), "", "=r,0", [number], False)
    return builder.fpext(builder.bitcast(builder.trunc(number, I16), ir.HalfType()), to)


def half_by_bits(builder: Any, bits: Any, to: Any) -> Any:
    wide = like(to, I32)
    bits = builder.zext(bits, wide)
    size = builder.shl(builder.and_(bits, same(wide, 0x7FFF)), same(wide, 13))
    # the biases of the exponents differ by 112; subnormal F16 numbers become normal here
    value = builder.fmul(builder.bitcast(size, to), same(to, 2.0**112))
    special = builder.icmp_unsigned(">=", size, same(wide, 0x7C00 << 13))
    endless = builder.or_(size, same(wide, 0x7F800000))
    value = builder.select(special, endless, builder.bitcast(value, wide))
    sign = builder.shl(builder.and_(bits, same(wide, 0x8000)), same(wide, 16))
    return builder.bitcast(builder.or_(value, sign), to)


# --- tables ------------------------------------------------------------------------------------


def shuffle_bytes(context: Any, builder: Any, table: Any, at: Any) -> list[Any]:
    """Return the bytes at sixteen indices of a table of sixteen bytes."""
    triple, _, features = context.codegen().magic_tuple()
    numbers = [number(i) for i in range(16)]
    if triple.startswith(("x86", "i686")) and "+ssse3" in features:
        kind = ir.FunctionType(table.type, (table.type, at.type))
        shuffle = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.ssse3.pshuf.b.128")
        found = builder.call(shuffle, (table, at))
        return [builder.extract_element(found, i) for i in numbers]
    places = (builder.zext(builder.extract_element(at, i), I32) for i in numbers)
    return [builder.extract_element(table, place) for place in places]
