"""The contract every weight format fulfils."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import MalformedFile
from lockstep.engine.registry import Registered

F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]

NO_PRODUCT = "no product"  # `vec_dot_type` of types that llama.cpp reads but cannot multiply


class WeightFormat(Registered):
    """Format of one block: a fixed number of bytes that becomes `weights` floats.

    `vec_dot_type` names an activation format (engine/activations): llama.cpp's CPU code converts
    activations to it (`type_traits_cpu` in ggml-cpu.c). NO_PRODUCT: the format has no product.
    """

    type_id: ClassVar[int]  # value of ggml_type in the file
    weights: ClassVar[int]  # number of weights in a block
    layout: ClassVar[np.dtype[np.void]]  # fields in the order of bytes
    vec_dot_type: ClassVar[str]

    @staticmethod
    def unpack(raw: Bytes, out: F32) -> None:
        """Unpack whole blocks to all of their weights, by a kernel of `lanes`. This function
        defines the format.

        raw and out are flat; out has `weights` floats per block. Any bytes are legal: NaN, infinite
        and subnormal scales follow from the arithmetic, in ggml's order and roundings.
        """
        raise NotImplementedError

    @classmethod
    def dequantize(cls, raw: Bytes) -> F32:
        """Decode whole blocks of bytes to their weights, flat."""
        out = np.empty(cls.whole_blocks(raw) * cls.weights, np.float32)
        cls.dequantize_into(raw, out)
        return out

    @classmethod
    def dequantize_into(cls, raw: Bytes, out: F32) -> None:
        """Decode into `out`, flat and contiguous. Threads may call this side by side."""
        blocks = cls.whole_blocks(raw)
        if out.dtype != np.float32 or out.shape != (blocks * cls.weights,) or not usable(out):
            raise ValueError(
                f"{blocks} blocks of {cls.name} need a flat, contiguous, aligned and writeable "
                f"float32 array of {blocks * cls.weights}, got {out.dtype} of shape {out.shape}"
            )
        raw = np.ascontiguousarray(raw).reshape(-1).view()
        raw.flags.writeable = False  # only of our view; numba compiles for read-only arrays once
        cls.unpack(raw, out)

    @classmethod
    def whole_blocks(cls, raw: Bytes) -> int:
        """Return the number of blocks in these bytes. Raises MalformedFile if the last one is
        incomplete."""
        blocks, rest = divmod(raw.size, cls.layout.itemsize)
        if rest:
            raise MalformedFile(
                "partial-block",
                raw.size - rest,
                f"{cls.name} needs whole {cls.layout.itemsize}-byte blocks, got {raw.size} bytes",
            )
        return blocks


def offsets(layout: np.dtype[np.void]) -> tuple[int, ...]:
    """Return the offset of each field in a block, in bytes, for kernels, which read bytes."""
    return tuple(layout.fields[name][1] for name in layout.names or () if layout.fields)


def offset_of(kind: type[WeightFormat], field: str) -> int:
    """Return the offset of a field in a block, in bytes."""
    return int(kind.layout.fields[field][1]) if kind.layout.fields else 0


def usable(out: F32) -> bool:
    return out.flags.c_contiguous and out.flags.aligned and out.flags.writeable
