"""Q8_0: 32 weights in 34 bytes; weight = d * q."""

import numpy as np
from numpy.typing import NDArray

from engine.quants.base import F32, Bytes, WeightFormat, offsets
from engine.quants.lanes import as_float, half_at, kernel, signed_bytes_at, store

LAYOUT = np.dtype([("d", "<f2"), ("qs", "i1", 32)])
SIZE = LAYOUT.itemsize
D, QS = offsets(LAYOUT)


class Q8_0(WeightFormat, name="Q8_0"):
    type_id = 8
    weights = 32
    layout = LAYOUT
    vec_dot_type = "Q8_0"

    @staticmethod
    @kernel
    def unpack(raw: Bytes, out: F32) -> None:
        for i in range(raw.size // SIZE):
            d = half_at(raw, i * SIZE + D)
            q = signed_bytes_at(raw, i * SIZE + QS, 32)
            store(out, 32 * i, d * as_float(q))

    @classmethod
    def round_activations(cls, x: F32) -> F32:
        q, d = cls.quantise(x)
        with np.errstate(invalid="ignore"):  # a scale beyond 65504 is infinite, and 0 * inf is NaN
            return (q * d[..., None]).reshape(x.shape)

    @staticmethod
    def quantise(x: F32) -> tuple[NDArray[np.int8], F32]:
        """x: (..., n) -> integers (..., n / 32, 32) and their scales (..., n / 32).

        As quantize_row_q8_0 of ggml-cpu's x86 code (llama.cpp of llama-cpp-python 0.3.36). It
        multiplies by 127 / max and rounds ties to even, whereas the scale that is stored is
        max / 127 rounded to a half: the two are not exact inverses, on purpose here too.
        """
        blocks = x.reshape(*x.shape[:-1], x.shape[-1] // 32, 32)
        with np.errstate(all="ignore"):
            largest = largest_of(blocks)
            inverse = np.where(largest != 0, np.float32(127) / largest, np.float32(0))
            scaled = np.rint(blocks * inverse[..., None])
            d = (largest / np.float32(127)).astype(np.float16).astype(np.float32)
        # 127 / max is infinite for max < 4e-37; what is no integer then becomes INT_MIN, and the
        # packing to bytes makes -128 of it
        return np.where(np.isfinite(scaled), scaled, -128).astype(np.int8), d


def largest_of(blocks: F32) -> F32:
    """The largest magnitude of each block, in the order that decides what a NaN does.

    maxps(a, b) is b if either is NaN, so a NaN is forgotten by the next comparison.
    """
    found = np.abs(blocks).reshape(*blocks.shape[:-1], 4, 8)
    lanes = found[..., 0, :]
    for i in range(1, 4):
        lanes = larger(lanes, found[..., i, :])
    four = larger(lanes[..., 4:], lanes[..., :4])
    two = larger(four[..., :2], four[..., 2:])
    return larger(two[..., 0], two[..., 1])


def larger(a: F32, b: F32) -> F32:
    return np.where(a > b, a, b)
