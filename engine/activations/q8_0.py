"""Q8_0: blocks of 32 signed bytes with a half-precision scale, max / 127."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.activations.base import GENERIC, X86, ActivationFormat, Converted, rounded_away
from lockstep.engine.kernels.largest import largest_magnitude
from lockstep.engine.quants.base import F32


class Q8_0Activations(ActivationFormat, name="Q8_0"):
    type_id = 8
    block = 32
    layout = np.dtype([("d", "<f2"), ("qs", "i1", 32)])

    @classmethod
    def quantise(cls, x: F32, variant: str = X86) -> NDArray[Any]:
        whole, d = steps(cls.cut(x), variant)
        blocks = np.empty(d.shape, cls.layout)
        blocks["d"], blocks["qs"] = half(d), pack_codes(whole, variant)
        return blocks

    @classmethod
    def read(cls, blocks: NDArray[Any]) -> Converted:
        with np.errstate(invalid="ignore"):  # a scale beyond 65504 is infinite, and 0 * inf is NaN
            values = blocks["d"].astype(np.float64)[..., None] * blocks["qs"]
        return Converted(values.reshape(*blocks.shape[:-1], blocks.shape[-1] * cls.block))


def steps(blocks: F32, variant: str) -> tuple[F32, F32]:
    """Return the multiples of the scale, as whole floats, and the unrounded scales. (..., 32)

    The scale is stored as a half, but the multiples are computed from the unrounded scale. So
    quantising and decoding are not exact inverses, as in ggml. Source: quantize_row_q8_0 in
    ggml-cpu's x86 code and in ggml-quants.c (llama.cpp of llama-cpp-python 0.3.36).
    """
    one, most = np.float32(1), np.float32(127)
    with np.errstate(all="ignore"):
        if variant == GENERIC:
            d = largest_in_turn(blocks) / most
            inverse = np.where(d != 0, one / d, np.float32(0))
            return rounded_away(blocks * inverse[..., None]), d
        largest = largest_of(blocks)
        inverse = np.where(largest != 0, most / largest, np.float32(0))
        return np.rint(blocks * inverse[..., None]), largest / most


def integers(whole: F32) -> NDArray[np.int32]:
    """Convert to int32 as the processor does: a NaN or a too large value becomes INT_MIN."""
    if fit_in_bytes(whole):
        return whole.astype(np.int32)
    fits = np.abs(whole) < np.float32(2.0**31)
    return np.where(fits, whole, np.float32(-(2.0**31))).astype(np.int32)


def pack_codes(whole: F32, variant: str) -> NDArray[np.int8]:
    """Convert to bytes. Codes overflow only for NaN activations, or where 127 / max overflows (max
    < 4e-37).

    On overflow, vector code saturates to -128 or 127, and C code keeps the integer's lowest byte.
    """
    if fit_in_bytes(whole):
        return whole.astype(np.int8)
    wide = integers(whole)
    return (wide if variant == GENERIC else np.clip(wide, -128, 127)).astype(np.int8)


def fit_in_bytes(whole: F32) -> bool:
    """Return True if all steps fit in signed bytes, which is nearly always true."""
    return bool(np.abs(whole).max(initial=0) <= 127)  # False for NaN


def half(x: F32) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        return x.astype("<f2")


def largest_of(blocks: F32) -> F32:
    """Return the largest magnitude of each block. Values are compared in ggml's order, because the
    order decides the effect of a NaN.

    maxps(a, b) is b if either is NaN, so the next comparison forgets a NaN.
    """
    largest = largest_magnitude(blocks)
    if not np.isnan(largest).any():
        return largest
    found = np.abs(blocks).reshape(*blocks.shape[:-1], 4, 8)
    lanes = found[..., 0, :]
    for i in range(1, 4):
        lanes = larger(lanes, found[..., i, :])
    four = larger(lanes[..., 4:], lanes[..., :4])
    two = larger(four[..., :2], four[..., 2:])
    return larger(two[..., 0], two[..., 1])


def largest_in_turn(blocks: F32) -> F32:
    """Return the largest magnitude, compared one by one. A NaN discards the values before it."""
    largest = np.zeros(blocks.shape[:-1], np.float32)
    for i in range(blocks.shape[-1]):
        largest = larger(largest, np.abs(blocks[..., i]))
    return largest


def larger(a: F32, b: F32) -> F32:
    return np.where(a > b, a, b)
