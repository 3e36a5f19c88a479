"""Compilation of decoders, and the rule that decides when compiled code on disk is out of date."""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, cast

from numba import types
from numba.extending import intrinsic

from lockstep.engine.kernels.compiled import Function, compile_kernel

HERE = Path(__file__).parent
SHARED = ("unpacking.py", "vectors.py", "lanes.py", "scales.py", "raw_bytes.py")
CODE_BOOKS = HERE.parent / "quants" / "codebooks"


def shared_sources() -> str:
    """Return a hash of the sources that kernels use from other files."""
    books = sorted(path for path in CODE_BOOKS.iterdir() if path.is_file())
    found = hashlib.sha256()
    for path in (*(HERE / name for name in SHARED), *books):
        found.update(path.read_bytes())
    return found.hexdigest()


SHARED_SOURCES = shared_sources()


def kernel(function: Function) -> Function:
    """Compile a decoder at its first call, and store the result on disk; threads may run it in
    parallel.

    A kernel may use its own file, lanes and code books, but no other format's code. If one of those
    files changes, the stored result is dropped.
    """
    options = {"nogil": True, "error_model": "numpy"}
    return cast(Function, compile_kernel(function, SHARED_SOURCES, **options))


# --- decoders as pointers, so that one kernel serves all of them ----------------------------------

BYTES = types.Array(types.uint8, 1, "C", readonly=True)
FLOATS = types.Array(types.float32, 1, "C")


@cache
def pointer_to(unpack: Any) -> int:
    """Return the address of a format's compiled `unpack`."""
    found = unpack.get_compile_result(types.void(BYTES, FLOATS))
    return int(found.library.get_pointer_to_function(found.fndesc.llvm_func_name))


@intrinsic
def unpack_at(typing: Any, pointer: Any, raw: Any, out: Any) -> Any:
    """Call the `unpack` function at this address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = context.call_conv.get_function_type(types.none, (BYTES, FLOATS))
        function = builder.inttoptr(args[0], kind.as_pointer())
        context.call_conv.call_function(builder, function, types.none, (BYTES, FLOATS), args[1:])
        return context.get_dummy_value()

    return types.void(types.intp, BYTES, FLOATS), codegen
