"""Vectors of 16 or 32 numbers for decoders: what the processor has and numba does not show.

    q = bytes_at(raw, at, 16)            # 16 bytes as int32 lanes
    store(out, to, d * as_float(q & 15) - m)

Each operation is one on whole vectors in LLVM, so that a block is decoded in a handful of
instructions. Only what the decoders need is here. Lanes live inside compiled functions only.
"""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.datamodel.registry import register_default
from numba.extending import intrinsic, overload, register_model
from numba.np.arrayobj import make_array

I8, I32, F32 = ir.IntType(8), ir.IntType(32), ir.FloatType()


class Lanes(types.Type):
    """`count` numbers, int32 or float32."""

    def __init__(self, kind: str, count: int) -> None:
        self.kind, self.count = kind, count
        super().__init__(name=f"Lanes({kind} x {count})")

    @property
    def vector(self) -> ir.VectorType:
        return ir.VectorType(I32 if self.kind == "int" else F32, self.count)


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Lanes) -> None:
        super().__init__(dmm, fe_type, fe_type.vector)


def element_pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    return builder.gep(make_array(array_type)(context, builder, array).data, [at])


def spread(builder: Any, scalar: Any, vector: ir.VectorType) -> Any:
    """The same scalar in every lane."""
    empty = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(empty, scalar, ir.Constant(I32, 0))
    zeros = ir.Constant(ir.VectorType(I32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, empty, zeros)


def loader(signed: bool) -> Callable[..., Any]:
    @intrinsic(prefer_literal=True)
    def load(typing: Any, raw: Any, at: Any, count: Any) -> Any:
        lanes = Lanes("int", count.literal_value)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            narrow = ir.VectorType(I8, lanes.count)
            start = element_pointer(context, builder, raw, args[0], args[1])
            loaded = builder.load(builder.bitcast(start, narrow.as_pointer()))
            loaded.align = 1
            widen = builder.sext if signed else builder.zext
            return widen(loaded, lanes.vector)

        return lanes(raw, types.intp, count), codegen

    return load


bytes_at = loader(signed=False)
signed_bytes_at = loader(signed=True)


@intrinsic
def store(typing: Any, out: Any, at: Any, lanes: Any) -> Any:
    """Write float lanes to out[at : at + count]."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start = element_pointer(context, builder, out, args[0], args[1])
        written = builder.store(args[2], builder.bitcast(start, lanes.vector.as_pointer()))
        written.align = 4
        return context.get_dummy_value()

    return types.void(out, types.intp, lanes), codegen


@intrinsic
def as_float(typing: Any, lanes: Any) -> Any:
    wide = Lanes("float", lanes.count)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.sitofp(args[0], wide.vector)

    return wide(lanes), codegen


def binary(symbol: Callable[..., Any], on_int: str | None, on_float: str | None) -> None:
    """Make an operator work between lanes, and between lanes and a scalar on either side."""

    @intrinsic
    def apply(typing: Any, a: Any, b: Any) -> Any:
        lanes = a if isinstance(a, Lanes) else b
        name = on_int if lanes.kind == "int" else on_float
        scalar = types.int32 if lanes.kind == "int" else types.float32
        left, right = (t if isinstance(t, Lanes) else scalar for t in (a, b))

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            x, y = (
                value if isinstance(kind, Lanes) else spread(builder, value, lanes.vector)
                for value, kind in zip(args, signature.args, strict=True)
            )
            return getattr(builder, name)(x, y)

        return lanes(left, right), codegen

    @overload(symbol, strict=False)
    def typed(a: Any, b: Any) -> Any:
        if isinstance(a, Lanes) or isinstance(b, Lanes):
            kinds = {t.kind for t in (a, b) if isinstance(t, Lanes)}
            if (on_int if kinds == {"int"} else on_float) and len(kinds) == 1:
                return lambda a, b: apply(a, b)
        return None


binary(operator.and_, "and_", None)
binary(operator.or_, "or_", None)
binary(operator.lshift, "shl", None)
binary(operator.rshift, "lshr", None)  # lanes hold bytes: never negative where they are shifted
binary(operator.add, "add", "fadd")
binary(operator.sub, "sub", "fsub")
binary(operator.mul, "mul", "fmul")
