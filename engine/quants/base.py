"""The contract every weight format fulfils."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from engine.errors import MalformedFile
from engine.registry import Registered

F32 = NDArray[np.float32]


class WeightFormat(Registered):
    """How one fixed-size block of bytes becomes `weights` floats.

    `vec_dot_type` names the format to which llama.cpp's CPU code converts activations before it
    multiplies them by weights of this one (`type_traits_cpu` in ggml-cpu.c). A format that serves
    as such a target overrides `round_activations`.
    """

    type_id: ClassVar[int]  # ggml_type in the file
    weights: ClassVar[int]  # per block
    layout: ClassVar[np.dtype[np.void]]  # field order is byte order
    vec_dot_type: ClassVar[str]

    @staticmethod
    def decode(blocks: NDArray[np.void]) -> F32:
        """(n,) blocks -> (n, weights) floats."""
        raise NotImplementedError

    @staticmethod
    def round_activations(x: F32) -> F32:
        """(..., n) activations -> the values that survive the conversion, same shape."""
        raise NotImplementedError

    @classmethod
    def dequantize(cls, raw: NDArray[np.uint8]) -> F32:
        """Whole blocks of bytes -> their weights, flat. Any bytes are legal, NaN is NaN."""
        if raw.size % cls.layout.itemsize:
            raise MalformedFile(
                "partial-block",
                raw.size - raw.size % cls.layout.itemsize,
                f"{cls.name} needs whole {cls.layout.itemsize}-byte blocks, got {raw.size} bytes",
            )
        blocks = np.ascontiguousarray(raw).view(cls.layout)
        with np.errstate(all="ignore"):  # random bytes hold NaN and infinite scales
            return cls.decode(blocks).reshape(-1)
