"""Numbers that threads share, for compiled code: atomic reads, writes and additions."""

import os
from typing import Any
from zlib import crc32

from llvmlite import ir
from numba import types
from numba.core import cgutils

from lockstep.engine.kernels.lanes import compiled_as
from lockstep.engine.kernels.vectors import I8, I32, I64, element_pointer

ORDER, ALIGN = "seq_cst", 8
# arguments: arguments, start, stop; returns True after a failure
PIECE = ir.FunctionType(I32, (I8.as_pointer(), I64, I64))


@compiled_as
def get(typing: Any, box: Any, at: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = element_pointer(context, builder, box, *args)
        return builder.load_atomic(place, ORDER, ALIGN)

    return types.int64(box, types.intp), codegen


@compiled_as
def put(typing: Any, box: Any, at: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = element_pointer(context, builder, box, *args[:2])
        builder.store_atomic(args[2], place, ORDER, ALIGN)
        return context.get_dummy_value()

    return types.void(box, types.intp, types.int64), codegen


@compiled_as
def fetch_add(typing: Any, box: Any, at: Any, value: Any) -> Any:
    """Add to a number, and return its value before."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = element_pointer(context, builder, box, *args[:2])
        return builder.atomic_rmw("add", place, args[2], ORDER)

    return types.int64(box, types.intp, types.int64), codegen


@compiled_as
def pause(typing: Any) -> Any:
    """Pause for a moment, so that a waiting thread does not slow down a working one."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if context.codegen().magic_tuple()[0].startswith(("x86", "i686")):
            call_outside(builder, "llvm.x86.sse2.pause", ir.VoidType())
        return context.get_dummy_value()

    return types.void(), codegen


@compiled_as
def give_way(typing: Any) -> Any:
    """Yield the processor to another thread, where the system can."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if hasattr(os, "sched_yield"):
            call_outside(builder, "sched_yield", I32)
        return context.get_dummy_value()

    return types.void(), codegen


def call_outside(builder: Any, name: str, result: Any) -> None:
    kind = ir.FunctionType(result, ())
    builder.call(cgutils.get_or_insert_function(builder.module, kind, name), ())


def code_of(kinds: Any) -> int:
    """Return a number that stands for the types of the arguments."""
    return crc32(" ".join(str(kind) for kind in kinds).encode())


@compiled_as
def code(typing: Any, arguments: Any) -> Any:
    """Return `code_of` for the argument types, which are known at compile time."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(I64, code_of(arguments.types))

    return types.int64(arguments), codegen


@compiled_as
def piece_of(typing: Any, kernel: Any, arguments: Any) -> Any:
    """Return the addresses of a function and of its arguments for `run`, valid while the caller
    runs.

    kernel: the address of a function that takes the arguments, a start and an end.
    """
    kinds = (*arguments.types, types.int64, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole = cgutils.pack_struct(builder, args)
        place = cgutils.alloca_once_value(builder, whole)
        name = builder.module.get_unique_name("piece")
        function = ir.Function(builder.module, PIECE, name)
        function.linkage = "internal"
        inner = ir.IRBuilder(function.append_basic_block("entry"))
        given, start, stop = function.args
        held = inner.load(inner.bitcast(given, place.type))
        convention, values = context.call_conv, inner.extract_value(held, 1)
        each = [inner.extract_value(values, i) for i in range(len(arguments))]
        kind = convention.get_function_type(types.none, kinds)
        pointer = inner.inttoptr(inner.extract_value(held, 0), kind.as_pointer())
        status, _ = convention.call_function(
            inner, pointer, types.none, kinds, [*each, start, stop]
        )
        inner.ret(inner.zext(status.is_error, I32))
        addresses = (builder.ptrtoint(x, I64) for x in (function, place))
        return context.make_tuple(builder, signature.return_type, addresses)

    return types.UniTuple(types.int64, 2)(types.int64, arguments), codegen


@compiled_as
def run(typing: Any, function: Any, arguments: Any, start: Any, stop: Any) -> Any:
    """Call the function for `start` to `stop`; return nonzero if it failed."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        call = builder.inttoptr(args[0], PIECE.as_pointer())
        given = builder.inttoptr(args[1], I8.as_pointer())
        return builder.call(call, (given, *args[2:]))

    return types.int32(*[types.int64] * 4), codegen
