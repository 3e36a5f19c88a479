"""Rows in a quantised cache: ggml's conversions from float32, returned as decoded values.

A compiler may fuse a product and a sum. This changes the code of a value half-way between two
codes; both codes are right. Source: quantize_row_*_ref in ggml-quants.c of llama-cpp-python 0.3.36;
some types are activation formats as well.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.activations.base import GENERIC, X86
from lockstep.engine.errors import Unsupported
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.products import activation_format
from lockstep.engine.quants.base import F32, WeightFormat

ACTIVATIONS = ("Q8_0", "BF16")
BLOCK = 32
CENTRED = {"Q4_0": 8, "Q5_0": 16}  # offset of codes; the largest value has the lowest code
FROM_MINIMUM = {"Q4_1": 15, "Q5_1": 31}  # largest code above the minimum


STORED = (*ACTIVATIONS, *CENTRED, *FROM_MINIMUM)


def store_rows(rows: F32, kind: str, build: Build) -> tuple[F64, F64, NDArray[np.uint8]]:
    """Return the decoded values, the error that an honest build may have, and the bytes of the
    codes: (..., bytes of a row).
    """
    if kind not in STORED:
        raise Unsupported(f"storing rows as {kind}")
    if kind in ACTIVATIONS:
        target = activation_format(WeightFormat.member(kind))
        raw = target.quantise(rows, GENERIC if kind in build.generic else X86)
        values = target.read(raw).values
        return values, np.zeros(values.shape), bytes_of_rows(raw)
    blocks = rows.reshape(*rows.shape[:-1], -1, BLOCK)
    if kind in CENTRED:
        values, slack, fields = centre_blocks(blocks, CENTRED[kind])
    else:
        values, slack, fields = from_minimum(blocks, FROM_MINIMUM[kind])
    raw = np.zeros(blocks.shape[:-1], WeightFormat.member(kind).layout)
    q = fields.pop("q").astype(np.uint8)
    raw["qs"] = (q[..., : BLOCK // 2] & 15) | (q[..., BLOCK // 2 :] & 15) << 4
    if "qh" in (raw.dtype.names or ()):
        raw["qh"] = np.packbits(q >> 4, axis=-1, bitorder="little")
    for name, value in fields.items():
        raw[name] = value[..., 0]
    return values.reshape(rows.shape), slack.reshape(rows.shape), bytes_of_rows(raw)


def bytes_of_rows(raw: NDArray[Any]) -> NDArray[np.uint8]:
    """Return blocks as bytes: (..., blocks) -> (..., bytes)."""
    return np.ascontiguousarray(raw).view(np.uint8).reshape(*raw.shape[:-1], -1)


def centre_blocks(blocks: F32, below: int) -> tuple[F64, F64, dict[str, F64]]:
    """Encode blocks. The first value of largest magnitude decides scale and sign."""
    at = np.abs(blocks).argmax(axis=-1)[..., None]
    scale = np.take_along_axis(blocks, at, axis=-1) / np.float32(-below)
    low, high = codes(blocks, scale, below + 0.5, 2 * below - 1)
    d = half(scale)
    return d * (low - below), np.abs(d) * (high - low), {"d": d, "q": low}


def from_minimum(blocks: F32, most: int) -> tuple[F64, F64, dict[str, F64]]:
    minimum = blocks.min(axis=-1, keepdims=True)
    scale = (blocks.max(axis=-1, keepdims=True) - minimum) / np.float32(most)
    low, high = codes(blocks - minimum, scale, 0.5, most)
    d, m = half(scale), half(minimum)
    values = (d * low + m).astype(np.float32).astype(np.float64)
    return values, np.abs(d) * (high - low) * 1.000001, {"d": d, "m": m, "q": low}


def codes(values: F32, scale: F32, shift: float, most: int) -> tuple[F64, F64]:
    """Return the lowest and the highest code of each value; they differ if two ways of rounding
    give different codes.
    """
    with np.errstate(divide="ignore"):
        inverse = np.where(scale != 0, np.float32(1) / scale, np.float32(0))
    apart = values * inverse + np.float32(shift)
    fused = (values.astype(np.float64) * inverse + shift).astype(np.float32)
    both = [np.minimum(np.trunc(x), most).astype(np.float64) for x in (apart, fused)]
    return np.minimum(*both), np.maximum(*both)


def half(x: F32) -> F64:
    return x.astype(np.float16).astype(np.float64)
