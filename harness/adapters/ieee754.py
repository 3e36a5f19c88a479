"""Conversion of plain number types to float32 by the IEEE 754 standard. This is the oracle for
types that llama.cpp does not decode.

ggml stores F64 and integers, but never reads them as weights. Their conversion is well defined:
each value becomes the nearest float32, with ties to even, and values beyond the largest float32
become infinity.
"""

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.records import EngineInfo

NUMBERS = {"F64": "<f8", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}


class Ieee754(Adapter, name="ieee754"):
    """Conversion by numpy, and so by the processor. The engine's version is the version of the
    standard."""

    def describe(self) -> EngineInfo:
        return EngineInfo(engine=self.name, version="2019", settings=self.settings)

    def dequantize(self, type_name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        if type_name not in NUMBERS:
            known = ", ".join(NUMBERS)
            raise Unsupported(f"{type_name} is not a plain number type (known: {known})")
        dtype = np.dtype(NUMBERS[type_name])
        if raw.size % dtype.itemsize:
            raise EngineError(f"{raw.size} bytes are not a multiple of a {type_name} value")
        with np.errstate(all="ignore"):  # some values overflow float32 or are signalling NaN
            return np.ascontiguousarray(raw).reshape(-1).view(dtype).astype(np.float32)
