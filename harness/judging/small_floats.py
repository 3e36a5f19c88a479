"""Float32 values rounded to floats of four bits, of eight bits, and TF32.

Source of the formats: the Open Compute Project's specifications of 8-bit floats (OFP8 1.0) and of
microscaling formats (1.0).
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from lockstep.engine.ops.near import F64
from lockstep.engine.quants.base import F32


def in_small_float(x: F32, *, bits: int, least: int, largest: float) -> F64:
    """Return x rounded to floats with `bits` bits after the leading bit, ties to even. least: the
    exponent of the smallest normal number; largest: the largest magnitude."""
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        steps = np.ldexp(1.0, np.maximum(np.frexp(wide)[1] - 1, least) - bits)
        found = np.rint(wide / steps) * steps
        return np.where(np.isfinite(wide), np.clip(found, -largest, largest), wide)


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)  # magnitudes of E2M1
TIES = (FP4[1:] + FP4[:-1]) / 2


def in_fp4(x: F32, *, size: int, scales: Callable[[F32], F32]) -> F64:
    """Return x, (..., n), rounded to four bits. Neighbours share a scale, and ties go to the even
    step. size: the number of neighbours; scales: the scale of a block with this largest
    magnitude."""
    n = x.shape[-1]
    blocks = np.zeros((*x.shape[:-1], -(-n // size) * size), np.float32)
    blocks[..., :n] = x
    blocks = blocks.reshape(*x.shape[:-1], -(-n // size), size)
    scale = scales(np.abs(blocks).max(axis=-1, keepdims=True))
    with np.errstate(all="ignore"):
        shares = np.nan_to_num(np.abs(blocks) / scale, nan=0.0)
    low, high = np.searchsorted(TIES, shares), np.searchsorted(TIES, shares, side="right")
    codes = np.where(low % 2 == 0, low, high)
    found: F64 = np.copysign(FP4[codes].astype(np.float64), blocks) * scale.astype(np.float64)
    return found.reshape(*x.shape[:-1], blocks.shape[-2] * size)[..., :n]


def in_powers_of_two(most: F32) -> F32:
    """Return MXFP4's scales, which are powers of two that bring each block's largest value to
    between 4 and 8."""
    return np.where(most > 0, np.ldexp(np.float32(1), np.frexp(most)[1] - 3), np.float32(0))


def in_e4m3_sixths(most: F32) -> F32:
    """Return NVFP4's scales, which are a sixth of each block's largest value, rounded to E4M3."""
    return in_small_float(most / np.float32(6), bits=3, least=-6, largest=448.0).astype(np.float32)


F32_MAX = float(np.finfo(np.float32).max)
in_tf32 = partial(in_small_float, bits=10, least=-126, largest=F32_MAX)
in_e4m3 = partial(in_small_float, bits=3, least=-6, largest=448.0)
in_e5m2 = partial(in_small_float, bits=2, least=-14, largest=57344.0)
in_mxfp4 = partial(in_fp4, size=32, scales=in_powers_of_two)
in_nvfp4 = partial(in_fp4, size=16, scales=in_e4m3_sixths)
