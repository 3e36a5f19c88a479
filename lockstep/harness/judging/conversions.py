"""What engines of other designs convert activations to before they meet quantised weights.

llama.cpp makes blocks of Q8_0, Q8_1 or Q8_K of them, whose scales are halves or floats; most others
leave them as they are. Honest besides: whole steps with float32 scales, of any usual number of
neighbours or of a whole row, and half precision. In these runs weights that are not quantised meet
activations as they are.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from lockstep.engine.activations.bf16 import BF16Activations
from lockstep.engine.activations.f16 import F16Activations
from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.products import is_in_blocks
from lockstep.engine.quants.base import F32, WeightFormat

STEPS = 127  # to each side of zero
# activations that share a scale, 16 as weights of Q2_K, Q3_K, Q6_K and NVFP4 do; 0: the whole row
SIZES = (16, 32, 64, 128, 256, 0)
Convert = Callable[[F32], F64]


def in_bytes(x: F32, size: int, *, divided: bool = True) -> F64:
    """x: (..., n) -> what is left of it. divided: by the scale, or multiplied by 127 / largest;
    between two steps the two may go to different ones."""
    n = x.shape[-1]
    size = size or n
    each = -(-n // size)  # said, as there may be no rows: of a batch without outputs
    rows = np.zeros((*x.shape[:-1], each * size), np.float32)
    rows[..., :n] = x
    blocks = rows.reshape(*x.shape[:-1], each, size)
    most = np.abs(blocks).max(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        scales = most / np.float32(STEPS)
        steps = blocks / scales if divided else blocks * (np.float32(STEPS) / most)
        found = np.where(most == 0, 0.0, np.rint(steps) * scales.astype(np.float64))
    return found.reshape(rows.shape)[..., :n]


def in_bf16(x: F32) -> F64:
    return BF16Activations.convert(x).values


def in_halves(x: F32) -> F64:
    return F16Activations.convert(x).values


def conversions(*, every: bool) -> Iterator[Convert]:
    """every: also those that differ between two steps alone, which a whole run does not tell."""
    for size in SIZES:
        for divided in (True, False) if every else (True,):
            yield partial(in_bytes, size=size, divided=divided)
    yield from (in_bf16, in_halves)


def builds(build: Build, *, every: bool = False) -> Iterator[Build]:
    """In which an engine computes that converts so, and makes none of ggml's roundings. every: also
    one that converts nothing and adds offsets of weights up apart, which cancels: the same numbers
    to another bound, which matters for single ops alone."""
    if every:
        yield replace(build, plain=True, offsets_apart=True)
    for convert in conversions(every=every):
        yield replace(build, plain=True, activations=convert)


def is_quantised(file: GgufFile) -> bool:
    """Whether anything in it is multiplied by activations that are converted in blocks."""
    names = {tensor.type.name for tensor in file.tensors.values()}
    return any(is_type_in_blocks(name) for name in names)


def is_type_in_blocks(name: str) -> bool:
    try:
        return is_in_blocks(WeightFormat.named(name))
    except Unsupported:  # of no weights
        return False
