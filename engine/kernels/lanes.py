"""Vectors of numbers for decoders, with processor features that numba does not expose.

    q = bytes_at(raw, at, 16)             # 16 bytes, each as an int32 lane
    store(out, to, d * as_float(q & 15) - m)

A kernel (`@kernel`) of such calls reads like the format's specification, and runs at the speed of
the processor's vectors: every operation works on whole vectors in LLVM, of any width. Lanes hold
int32 or float32, exist only inside compiled functions, and round after every operation: nothing is
contracted or reordered. A scalar operand is copied to every lane: any integer, or a float32
(float64 is refused, because it would round twice).

Loads and stores are not checked: `at` is an index into the array, and the caller makes sure that
the array is long enough.
"""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.errors import TypingError
from numba.core.typing import signature
from numba.extending import intrinsic, lower_builtin, register_model, type_callable
from numba.np.arrayobj import make_array

from lockstep.engine.kernels.unpacking import kernel as kernel  # re-exported for the formats
from lockstep.engine.kernels.vectors import (
    F32,
    F64,
    I1,
    I8,
    I16,
    I32,
    I64,
    address,
    as_it_is,
    brain,
    fill_vector,
    half,
    join_vectors,
    number,
    pack_vector,
    same,
    shuffle_bytes,
    to_signed,
    to_unsigned,
)

# --- the type ---------------------------------------------------------------------------------


SCALARS = {
    "int": (types.int32, I32),
    "short": (types.int16, I16),
    "float": (types.float32, F32),
    "double": (types.float64, F64),
}


class Lanes(types.Type):  # type: ignore[misc]  # numba has no types
    """`count` numbers of one kind: int (int32), short (int16), float (float32) or double. Doubles
    are sums, and only `dots` computes with them."""

    def __init__(self, kind: str, count: int) -> None:
        self.kind, self.count = kind, count
        super().__init__(name=f"Lanes({kind} x {count})")

    @property
    def scalar(self) -> Any:
        return SCALARS[self.kind][0]

    @property
    def vector(self) -> ir.VectorType:
        return ir.VectorType(SCALARS[self.kind][1], self.count)


class LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        super().__init__(manager, lanes, lanes.vector)


register_model(Lanes)(LanesModel)


def compiled_as(build: Callable[..., Any]) -> Any:
    """Return a compiled operation. build(typing context, argument types...) returns a signature and
    a code generator."""
    return intrinsic(prefer_literal=True)(build)


def as_constant(count: Any) -> int:
    """Return the number of lanes as a compile-time literal, which kernels need."""
    if not isinstance(count, types.IntegerLiteral):
        raise TypingError(f"the number of lanes must be a literal, got {count}")
    return int(count.literal_value)


# --- loads and stores -------------------------------------------------------------------------


Widen = Callable[[Any, Any, Any, Any], Any]  # (context, builder, value, wider LLVM type) -> value


def load_of(stored: Any, widen: Widen, kind: str) -> Any:
    """Return a function (array, at, count) -> lanes, which loads numbers stored as `stored`."""

    def load(typing: Any, array: Any, at: Any, count: Any) -> Any:
        lanes = Lanes(kind, as_constant(count))

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            narrow = ir.VectorType(stored, lanes.count)
            start = address(context, builder, array, args[0], args[1], narrow)
            return widen(context, builder, builder.load(start, align=1), lanes.vector)

        return lanes(array, types.intp, count), codegen

    return compiled_as(load)


def scalar_of(stored: Any, widen: Widen, kind: Any, to: Any) -> Any:
    """Return a function (array, at) -> one number."""

    def load(typing: Any, array: Any, at: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            start = address(context, builder, array, args[0], args[1], stored)
            return widen(context, builder, builder.load(start, align=1), to)

        return kind(array, types.intp), codegen

    return compiled_as(load)


# arrays of bytes -> int lanes, little endian
bytes_at = load_of(I8, to_unsigned, "int")
signed_bytes_at = load_of(I8, to_signed, "int")
uint32s_at = load_of(I32, as_it_is, "int")  # a lane of 2**31 or more is negative
# bytes as short lanes, so that twice as many fit into a register
shorts_at = load_of(I8, to_unsigned, "short")
# arrays of bytes or of floats -> float lanes
halves_at = load_of(I16, half, "float")
floats_at = load_of(F32, as_it_is, "float")


# single numbers: int64, so that shifts and sums do not overflow; float32; float64
byte_at = scalar_of(I8, to_unsigned, types.int64, I64)
signed_byte_at = scalar_of(I8, to_signed, types.int64, I64)
uint16_at = scalar_of(I16, to_unsigned, types.int64, I64)
int16_at = scalar_of(I16, to_signed, types.int64, I64)
uint32_at = scalar_of(I32, to_unsigned, types.int64, I64)
int32_at = scalar_of(I32, to_signed, types.int64, I64)
int64_at = scalar_of(I64, as_it_is, types.int64, I64)
half_at = scalar_of(I16, half, types.float32, F32)
brain_float_at = scalar_of(I16, brain, types.float32, F32)
float_at = scalar_of(F32, as_it_is, types.float32, F32)
double_at = scalar_of(F64, as_it_is, types.float64, F64)


@compiled_as
def store(typing: Any, out: Any, at: Any, lanes: Any) -> Any:
    """Write lanes to out[at : at + count]: floats as float32, or whole numbers (which must fit)
    as int16."""
    if not isinstance(lanes, Lanes) or out.dtype not in (types.float32, types.int16):
        return None
    whole = out.dtype == types.int16
    if lanes.kind != "float" and not whole:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value, narrow = args[2], ir.VectorType(I16, lanes.count)
        if whole and lanes.kind != "short":
            cut = builder.fptosi if lanes.kind == "float" else builder.trunc
            value = cut(value, narrow)
        start = address(context, builder, out, args[0], args[1], value.type)
        builder.store(value, start, align=2 if whole else 4)
        return context.get_dummy_value()

    return types.void(out, types.intp, lanes), codegen


# --- from lanes to lanes ----------------------------------------------------------------------


@compiled_as
def as_float(typing: Any, lanes: Any) -> Any:
    """Return integers as floats of the same value."""
    wide = Lanes("float", lanes.count)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.sitofp(args[0], wide.vector)

    return wide(lanes), codegen


@compiled_as
def half_of_bits(typing: Any, bits: Any) -> Any:
    """Return an integer's lowest 16 bits, read as a half, for scales whose bits are split."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return half(context, builder, builder.trunc(args[0], I16), F32)

    return types.float32(types.int64), codegen


@compiled_as
def spread(typing: Any, value: Any, count: Any) -> Any:
    """Return a scalar in every lane; a float must be float32."""
    lanes = Lanes("float" if value == types.float32 else "int", as_constant(count))
    if isinstance(value, types.Float) and value != types.float32:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return fill_vector(builder, args[0], lanes.count)

    return lanes(lanes.scalar, count), codegen


@compiled_as
def bits_of(typing: Any, value: Any, count: Any) -> Any:
    """Return the lowest `count` bits of an integer (8, 16, 32 or 64), lowest first, as lanes of 0
    and 1."""
    lanes = Lanes("int", as_constant(count))

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        exact = args[0] if lanes.count == 64 else builder.trunc(args[0], ir.IntType(lanes.count))
        return builder.zext(builder.bitcast(exact, ir.VectorType(I1, lanes.count)), lanes.vector)

    return lanes(types.int64, count), codegen


@compiled_as
def where(typing: Any, chosen: Any, a: Any, b: Any) -> Any:
    """Return a where `chosen` is not 0, else b, lane by lane; both may be lanes or scalars."""
    kinds = [t.kind for t in (a, b) if isinstance(t, Lanes)]
    floats = "float" in kinds or types.float32 in (a, b)
    lanes = Lanes("float" if floats else "int", chosen.count)
    if any(not fits(t, lanes) for t in (a, b)):
        return None
    sides = [t if isinstance(t, Lanes) else lanes.scalar for t in (a, b)]

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, y = as_vectors(builder, signature.args[1:], args[1:], lanes)
        return builder.select(builder.icmp_signed("!=", args[0], same(args[0].type, 0)), x, y)

    return lanes(chosen, *sides), codegen


@compiled_as
def concat(typing: Any, a: Any, b: Any) -> Any:
    """Return the lanes of a, then the lanes of b."""
    if a != b:
        return None
    lanes = Lanes(a.kind, 2 * a.count)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return join_vectors(builder, *args)

    return lanes(a, b), codegen


@compiled_as
def lookup(typing: Any, table: Any, lanes: Any) -> Any:
    """Return table[lane] for each lane.

    The table is a tuple of 16 integers of 8 bits, or a flat array of integers or float32. A tuple
    stays in a register, and every lane must be 0 to 15.
    """
    if isinstance(table, types.BaseTuple):
        return lanes(types.UniTuple(types.int64, 16), lanes), in_register
    found = Lanes("float" if table.dtype == types.float32 else "int", lanes.count)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        result = ir.Constant(found.vector, ir.Undefined)
        for i in range(lanes.count):
            at = builder.zext(builder.extract_element(args[1], number(i)), I64)
            array = make_array(table)(context, builder, args[0])
            value = builder.load(builder.gep(array.data, [at]))
            value = context.cast(builder, value, table.dtype, found.scalar)
            result = builder.insert_element(result, value, number(i))
        return result

    return found(table, lanes), codegen


def in_register(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    table = pack_vector(
        builder, [builder.trunc(n, I8) for n in cgutils.unpack_tuple(builder, args[0])]
    )
    lanes = signature.return_type
    at = builder.trunc(args[1], ir.VectorType(I8, lanes.count))
    found = []
    for start in range(0, lanes.count, 16):
        order = [number(min(start + i, lanes.count - 1)) for i in range(16)]
        sixteen = builder.shuffle_vector(at, at, ir.Constant(ir.VectorType(I32, 16), order))
        found += shuffle_bytes(context, builder, table, sixteen)
    return builder.sext(pack_vector(builder, found[: lanes.count]), lanes.vector)


# --- operators --------------------------------------------------------------------------------


def fits(kind: Any, lanes: Lanes) -> bool:
    """Return True if a value of this type can be combined with the lanes."""
    if isinstance(kind, Lanes):
        return bool(kind == lanes)
    if isinstance(kind, types.Integer | types.IntegerLiteral):
        return True
    return lanes.kind == "float" and kind == types.float32


def as_vectors(builder: Any, kinds: Any, args: Any, lanes: Lanes) -> list[Any]:
    return [
        value if isinstance(kind, Lanes) else fill_vector(builder, value, lanes.count)
        for kind, value in zip(kinds, args, strict=True)
    ]


def binary(symbol: Callable[..., Any], on_int: str | None, on_float: str | None) -> None:
    """Define an operator between lanes, and between lanes and a scalar on either side."""

    def result(context: Any) -> Callable[[Any, Any], Any]:
        def typer(a: Any, b: Any) -> Any:
            lanes = a if isinstance(a, Lanes) else b
            if not isinstance(lanes, Lanes) or not (fits(a, lanes) and fits(b, lanes)):
                return None
            if (on_float if lanes.kind == "float" else on_int) is None:
                return None
            sides = (t if isinstance(t, Lanes) else lanes.scalar for t in (a, b))
            return signature(lanes, *sides)

        return typer

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lanes = sig.return_type
        x, y = as_vectors(builder, sig.args, args, lanes)
        return getattr(builder, str(on_float if lanes.kind == "float" else on_int))(x, y)

    type_callable(symbol)(result)
    for sides in ((Lanes, Lanes), (Lanes, types.Number), (types.Number, Lanes)):
        lower_builtin(symbol, *sides)(codegen)


binary(operator.and_, "and_", None)
binary(operator.or_, "or_", None)
binary(operator.xor, "xor", None)
binary(operator.lshift, "shl", None)
binary(operator.rshift, "lshr", None)  # fills with zeros, even for negative lanes
binary(operator.add, "add", "fadd")
binary(operator.sub, "sub", "fsub")
binary(operator.mul, "mul", "fmul")


def negative(context: Any) -> Callable[[Any], Any]:
    def typer(lanes: Any) -> Any:
        return lanes if isinstance(lanes, Lanes) else None

    return typer


def negate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.fneg(*args) if sig.return_type.kind == "float" else builder.neg(*args)


type_callable(operator.neg)(negative)
lower_builtin(operator.neg, Lanes)(negate)


def item(context: Any) -> Callable[[Any, Any], Any]:
    def typer(lanes: Any, index: Any) -> Any:
        if isinstance(lanes, Lanes) and isinstance(index, types.Integer | types.IntegerLiteral):
            return signature(lanes.scalar, lanes, types.int32)
        return None

    return typer


def take_item(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.extract_element(*args)


type_callable(operator.getitem)(item)
lower_builtin(operator.getitem, Lanes, types.Integer)(take_item)


# --- code that several formats share ----------------------------------------------------------


@compiled_as
def crumbs_of(typing: Any, word: Any) -> Any:
    """Return the 16 pairs of bits of an integer, lowest first: lanes of 0 to 3."""
    lanes = Lanes("int", 16)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        shifts = ir.Constant(lanes.vector, list(range(0, 32, 2)))
        word = fill_vector(builder, args[0], lanes.count)
        return builder.and_(builder.lshr(word, shifts), same(lanes.vector, 3))

    return lanes(types.int32), codegen
