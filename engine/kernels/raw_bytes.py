"""Bytes of a file: prefetched before they are read, or copied."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import register_jitable as part
from numpy.typing import NDArray

from lockstep.engine.kernels.lanes import compiled_as
from lockstep.engine.kernels.vectors import I8, I32, address, number

AHEAD = 4096  # bytes; a processor's own prefetching stops at the end of a page
LINE = 64


@compiled_as
def prefetch_line(typing: Any, array: Any, at: Any) -> Any:
    """Prefetch the cache line of a byte, which may lie beyond the array's end."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start = address(context, builder, array, args[0], args[1], I8)
        kind = ir.FunctionType(ir.VoidType(), [start.type, I32, I32, I32])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [start.type], kind)
        to_read, into_all_caches, data = number(0), number(3), number(1)
        builder.call(fetch, [start, to_read, into_all_caches, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@part
def prefetch(raw: Any, at: int, size: int) -> None:
    """Prefetch the bytes one page after the `size` bytes at `at`, which are about to be read."""
    for line in range(at + AHEAD, at + AHEAD + size, LINE):
        prefetch_line(raw, line)


@compiled_as
def copy_bytes(typing: Any, to: Any, raw: Any, at: Any) -> Any:
    """Copy as much of raw[at:] as fits into `to`. numba itself would copy one byte at a time."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first = context.get_constant(types.intp, 0)
        start = address(context, builder, to, args[0], first, I8)
        found = address(context, builder, raw, args[1], args[2], I8)
        size = context.make_array(to)(context, builder, args[0]).nitems
        cgutils.raw_memcpy(builder, start, found, size, 1)
        return context.get_dummy_value()

    return types.void(to, raw, types.intp), codegen


def readable(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the bytes as a flat read-only array, the only kind for which kernels are compiled."""
    if raw.ndim == 1 and raw.flags.c_contiguous and not raw.flags.writeable:
        return raw
    view = np.ascontiguousarray(raw).reshape(-1).view()
    view.flags.writeable = False
    return view
