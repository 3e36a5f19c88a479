"""Decoders that are wrong in one way each, made from right ones, for every format they fit."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32, Bytes, WeightFormat

Kind = type[WeightFormat]
NIBBLES = {
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4",
}  # fmt: skip
SIGNED = {"I8": "x", "Q8_0": "qs", "Q6_K": "scales"}


def same(a: F32, b: F32) -> bool:
    """Bit for bit, but any NaN is as good as another."""
    return a.shape == b.shape and not differences(a, b).size


def differences(a: F32, b: F32) -> NDArray[np.intp]:
    """Where they differ. -0.0 is not 0.0."""
    return np.flatnonzero((a.view(np.uint32) != b.view(np.uint32)) & ~(np.isnan(a) & np.isnan(b)))


def fields(kind: Kind) -> tuple[str, ...]:
    return kind.layout.names or ()


def blocks_of(kind: Kind, raw: Bytes) -> NDArray[np.void]:
    return raw.copy().view(kind.layout)


def decoded(kind: Kind, blocks: NDArray[np.void]) -> F32:
    return kind.dequantize(np.ascontiguousarray(blocks).view(np.uint8).reshape(-1))


def minimum_of(kind: Kind) -> str:
    return next((name for name in ("m", "dmin") if name in fields(kind)), "")


def high_bits_of(kind: Kind) -> str:
    return next((name for name in ("qh", "hmask") if name in fields(kind)), "")


def has_half(kind: Kind) -> bool:
    return "d" in fields(kind) and kind.layout["d"] == np.dtype("<f2")


# --- what a wrong decoder makes of some bytes -----------------------------------------------------


def nibbles_swapped(kind: Kind, raw: Bytes) -> F32:
    blocks = blocks_of(kind, raw)
    q = blocks["ql" if "ql" in fields(kind) else "qs"]
    q[...] = q >> 4 | q << 4
    return decoded(kind, blocks)


def neighbours_exchanged(kind: Kind, raw: Bytes) -> F32:
    return kind.dequantize(raw).reshape(-1, 2)[:, ::-1].reshape(-1)


def scale_and_minimum_exchanged(kind: Kind, raw: Bytes) -> F32:
    minimum, blocks, right = minimum_of(kind), blocks_of(kind, raw), blocks_of(kind, raw)
    blocks["d"], blocks[minimum] = right[minimum], right["d"]
    return decoded(kind, blocks)


def minimum_taken_the_wrong_way(kind: Kind, raw: Bytes) -> F32:
    blocks = blocks_of(kind, raw)
    blocks[minimum_of(kind)] = -blocks[minimum_of(kind)]
    return decoded(kind, blocks)


def scale_left_out(kind: Kind, raw: Bytes) -> F32:
    blocks = blocks_of(kind, raw)
    blocks["d"] = 1
    return decoded(kind, blocks)


def scale_as_bf16(kind: Kind, raw: Bytes) -> F32:
    steps = scale_left_out(kind, raw).reshape(-1, kind.weights)
    bits = np.ascontiguousarray(blocks_of(kind, raw)["d"]).view(np.uint16).astype(np.uint32)
    with np.errstate(all="ignore"):
        return (bits << 16).view(np.float32).repeat(kind.weights) * steps.reshape(-1)


def subnormal_scales_flushed(kind: Kind, raw: Bytes) -> F32:
    blocks = blocks_of(kind, raw)
    blocks["d"] = np.where(np.abs(blocks["d"]) < 2.0**-14, 0, blocks["d"])
    return decoded(kind, blocks)


def high_bits_shifted(kind: Kind, raw: Bytes) -> F32:
    name, blocks = high_bits_of(kind), blocks_of(kind, raw)
    top = blocks[name].dtype.itemsize * 8 - 1
    blocks[name] = blocks[name] << 1 | blocks[name] >> top
    return decoded(kind, blocks)


def sign_ignored(kind: Kind, raw: Bytes) -> F32:
    return np.abs(kind.dequantize(raw))


def negative_bytes_clipped(kind: Kind, raw: Bytes) -> F32:
    blocks = blocks_of(kind, raw)
    blocks[SIGNED[kind.name]] = np.maximum(blocks[SIGNED[kind.name]], 0)
    return decoded(kind, blocks)


def blocks_a_byte_apart(kind: Kind, raw: Bytes) -> F32:
    """From the second block on all begin a byte too late."""
    blocks = raw.reshape(-1, kind.layout.itemsize)
    later = np.concatenate([raw[1:], raw[:1]]).reshape(blocks.shape)
    return kind.dequantize(np.concatenate([blocks[:1], later[1:]]).reshape(-1))


def fields_in_reverse(kind: Kind, raw: Bytes) -> F32:
    names, blocks = fields(kind), blocks_of(kind, raw)
    wrong = raw.copy().view(np.dtype([(n, kind.layout[n]) for n in reversed(names)]))
    for name in names:
        blocks[name] = wrong[name]
    return decoded(kind, blocks)


Mistake = Callable[[Kind, Bytes], F32]
MISTAKES: dict[Mistake, Callable[[Kind], bool]] = {  # and the formats in which it can be made
    nibbles_swapped: lambda kind: kind.name in NIBBLES,
    neighbours_exchanged: lambda kind: True,
    scale_and_minimum_exchanged: lambda kind: bool(minimum_of(kind)),
    minimum_taken_the_wrong_way: lambda kind: bool(minimum_of(kind)),
    scale_left_out: has_half,
    scale_as_bf16: lambda kind: has_half(kind) and not minimum_of(kind),
    subnormal_scales_flushed: has_half,
    high_bits_shifted: lambda kind: bool(high_bits_of(kind)),
    sign_ignored: lambda kind: True,
    negative_bytes_clipped: lambda kind: kind.name in SIGNED,
    blocks_a_byte_apart: lambda kind: kind.layout.itemsize > 1,
    fields_in_reverse: lambda kind: len(fields(kind)) > 1,
}


def mistaken(kinds: Iterable[Kind]) -> list[Any]:
    """Every mistake in every format in which it can be made, as parameters of a test."""
    return [
        pytest.param(kind, wrong, id=f"{kind.name}-{wrong.__name__}")
        for kind in kinds
        for wrong, fits in MISTAKES.items()
        if fits(kind)
    ]
