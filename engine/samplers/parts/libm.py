"""The C library's functions of single floats, for the same bits as llama.cpp on the same machine.

Compiled loops call them, because a call from Python takes 300 times as long as the function.
"""

import ctypes
import ctypes.util
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import njit

from lockstep.engine.samplers.parts.candidates import F32, F

Function = Callable[[F32], F32]


@cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL(ctypes.util.find_library("m"))


@cache
def unary(name: str) -> Function:
    """Return a function of arrays for a C function such as `expf`."""
    single = getattr(library(), name)
    single.restype, single.argtypes = ctypes.c_float, [ctypes.c_float]

    def each(values: F32) -> Any:
        out = np.empty_like(values)
        for i in range(len(values)):
            out[i] = single(values[i])
        return out

    # not cached on disk, because the code contains an address of this process
    compiled = njit(each)
    return lambda values: np.asarray(compiled(np.ascontiguousarray(values, F)), F)


@cache
def binary(name: str) -> Callable[[float, float], np.float32]:
    """Return a function of two numbers, such as `powf`."""
    single = getattr(library(), name)
    single.restype, single.argtypes = ctypes.c_float, [ctypes.c_float] * 2
    return lambda a, b: F(single(a, b))
