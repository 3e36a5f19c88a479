"""Formats to which engines of other designs convert activations before products with quantised
weights.

llama.cpp converts them to blocks of Q8_0, Q8_1 or Q8_K, whose scales are in half precision or
float32. Most other engines do not convert them. Other honest conversions are 8-bit steps with
float32 scales (one scale for any usual number of neighbours, or for a whole row), blocks of Q8_0
for all weights, and half precision. In these runs, products with weights that are not quantised
convert nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from lockstep.engine.activations.base import rounded_away
from lockstep.engine.activations.bf16 import BF16Activations
from lockstep.engine.activations.f16 import F16Activations
from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.products import is_in_blocks
from lockstep.engine.quants.base import F32, WeightFormat

STEPS = 127  # number of steps on each side of zero
# activations that share a scale; 16 for weights of Q2_K, Q3_K, Q6_K and NVFP4; 0: the whole row
SIZES = (16, 32, 64, 128, 256, 0)
Convert = Callable[[F32], F64]
How = Literal["divided", "multiplied", "inverse"]
Rounding = Callable[[F32], F32]


def rounded_up(x: F32) -> F32:
    """Return the values rounded to integers, with halves rounded up as in JavaScript and Java."""
    return np.floor(x + np.float64(0.5)).astype(np.float32)


# from activations to steps: by x / scale, by x * (127 / largest), or by x * (1 / scale)
HOW: dict[How, Callable[[F32, F32, F32], F32]] = {
    "divided": lambda x, most, scales: x / scales,
    "multiplied": lambda x, most, scales: x * (np.float32(STEPS) / most),
    "inverse": lambda x, most, scales: x * (np.float32(1) / scales),
}
# ties to even, as processors round; ties away from zero, as C, Go and Rust round; ties up
ROUNDINGS: tuple[Rounding, ...] = (np.rint, rounded_away, rounded_up)


def in_bytes(
    x: F32, size: int, *, how: How = "divided", to: Rounding = np.rint, halves: bool = False
) -> F64:
    """Return x, (..., n), rounded to 8-bit steps. how: the way to compute the steps; to: the
    rounding of values between two steps; halves: the stored scale is in half precision, but the
    steps are computed with the unrounded scale."""
    n = x.shape[-1]
    size = size or n
    each = -(-n // size)  # computed here, because a batch without outputs has no rows
    rows = np.zeros((*x.shape[:-1], each * size), np.float32)
    rows[..., :n] = x
    blocks = rows.reshape(*x.shape[:-1], each, size)
    most = np.abs(blocks).max(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        scales = most / np.float32(STEPS)
        steps = to(HOW[how](blocks, most, scales))
        kept = scales.astype(np.float16) if halves else scales
        found = np.where(most == 0, 0.0, steps * kept.astype(np.float64))
    return found.reshape(rows.shape)[..., :n]


def in_bf16(x: F32) -> F64:
    return BF16Activations.convert(x).values


def in_halves(x: F32) -> F64:
    return F16Activations.convert(x).values


def conversions(*, every: bool) -> Iterator[Convert]:
    """Yield the conversions. every: include variants that differ only for values between two steps,
    or in the rounding of a scale. A whole run does not distinguish these."""
    yield from (family[0] for family in families(every=every))
    if every:
        yield from (convert for family in families(every=True) for convert in family[1:])


def families(*, every: bool) -> Iterator[Sequence[Convert]]:
    """Yield families of conversions, the usual ones first.

    A family is one format, with all ways to choose between two steps that are about equally near.
    """
    scales = [(size, False) for size in SIZES]
    # llama.cpp's blocks of Q8_0; its GPU code uses these for types for which its CPU code has
    # others
    for size, halves in [*scales, (32, True)] if every else scales:
        yield [
            partial(in_bytes, size=size, how=how, to=to, halves=halves)
            for to in ROUNDINGS
            for how in HOW
        ]
    yield from ([in_bf16], [in_halves])


def builds(build: Build) -> Iterator[Build]:
    """Yield builds without ggml's roundings, one for each conversion."""
    for convert in conversions(every=False):
        yield replace(build, plain=True, activations=convert)


def families_of_builds(build: Build) -> Iterator[list[Build]]:
    """Yield families of builds for single ops.

    The first family converts nothing, and adds the offsets of weights separately. The offsets
    cancel, so the result is the same, but its bound is larger.
    """
    yield [replace(build, plain=True, offsets_apart=True)]
    for family in families(every=True):
        yield [replace(build, plain=True, activations=convert) for convert in family]


def is_quantised(file: GgufFile) -> bool:
    """Return True if the file has weights whose activations are converted in blocks."""
    names = {tensor.type.name for tensor in file.tensors.values()}
    return any(is_type_in_blocks(name) for name in names)


def is_type_in_blocks(name: str) -> bool:
    try:
        return is_in_blocks(WeightFormat.member(name))
    except Unsupported:  # no weights have such a type
        return False
