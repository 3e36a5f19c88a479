"""Memory that is asked for before it is read, as weights are that lie one behind the other."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import register_jitable as part

from lockstep.engine.kernels.lanes import compiled_as
from lockstep.engine.kernels.vectors import I8, I32, address, number

AHEAD = 4096  # bytes: by itself a processor reads ahead within a page alone, and pages are small
LINE = 64


@compiled_as
def prefetch_line(typing: Any, array: Any, at: Any) -> Any:
    """The cache line of a byte, which may lie behind the array's end."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start = address(context, builder, array, args[0], args[1], I8)
        kind = ir.FunctionType(ir.VoidType(), [start.type, I32, I32, I32])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [start.type], kind)
        to_read, into_all_caches, data = number(0), number(3), number(1)
        builder.call(fetch, [start, to_read, into_all_caches, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@part  # type: ignore[untyped-decorator]  # numba has no types
def prefetch(raw: Any, at: int, size: int) -> None:
    """What lies a page behind the `size` bytes at `at`, which are about to be read."""
    for line in range(at + AHEAD, at + AHEAD + size, LINE):
        prefetch_line(raw, line)
