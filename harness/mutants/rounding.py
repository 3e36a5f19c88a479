"""Mistakes in converting activations before a product: rounding, scales, sums."""

from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.engine.ops.near import F64
from lockstep.engine.ops.products import activation_format
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.mutants.parts.mistakes import Mistake

UNSEEN = "no effect that a reader sees"
WORSE = "text is worse"
LITTLE = "text is a little worse"
Convert = Callable[[F32, Weight], F64]


class WrongConversion(Mistake):
    group = "rounding"
    site = "Qcur"


class WrongSteps(WrongConversion):
    """An engine that converts as llama.cpp does, except for `steps`. It gets blocks (..., blocks,
    32) and their scales (..., blocks)."""

    shows_on = "q8_0"

    def activations(self, right: Convert, x: F32, weight: Weight) -> F64:
        kind = activation_format(weight.format)
        if kind.layout.names is None or not x.size:  # without rows there are no blocks
            return right(x, weight)
        blocks = x.reshape(*x.shape[:-1], -1, kind.block).astype(np.float64)
        with np.errstate(all="ignore"):
            found: F64 = self.steps(blocks, np.abs(blocks).max(axis=-1) / 127)
        return found.reshape(x.shape)

    def steps(self, blocks: Any, scales: Any) -> Any:
        raise NotImplementedError


def divide(blocks: Any, scales: Any) -> Any:
    return np.where(scales[..., None] == 0, 0, blocks / scales[..., None])


def half(x: Any) -> Any:
    """Return scales rounded to half precision, in a shape that broadcasts over their blocks."""
    return x.astype(np.float16).astype(np.float64)[..., None]


def in_bf16(x: Any) -> F64:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    found: F64 = (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
    return found


def largest_of_two(scales: Any) -> Any:
    pairs = scales.copy()
    even = scales.shape[-1] // 2 * 2
    both = scales[..., :even].reshape(*scales.shape[:-1], -1, 2).max(axis=-1)
    pairs[..., :even] = np.repeat(both, 2, axis=-1)
    return pairs


def round_by(blocks: Any, scales: Any) -> Any:
    """Round to multiples of these scales, then multiply the integers by the scales rounded to half
    precision."""
    return np.rint(divide(blocks, scales)).clip(-128, 127) * half(scales)


WrongSteps.add_fault(
    "activations-truncated",
    "activations are cut off towards zero instead of rounded",
    LITTLE,
    steps=lambda self, blocks, scales: np.trunc(divide(blocks, scales)) * half(scales),
)
WrongSteps.add_fault(
    "activation-scales-mismatched",
    "activations are divided by 1/128 of the largest, but multiplied by 1/127",
    "no effect that a reader sees: all products are larger by 0.8 per cent",
    steps=lambda self, blocks, scales: (
        np.rint(divide(blocks, scales * 127 / 128)).clip(-128, 127) * half(scales)
    ),
)
WrongSteps.add_fault(
    "activation-scale-of-maximum",
    "the scale is computed from the largest activation, not the largest magnitude",
    WORSE,
    shows_on="q4_0",
    steps=lambda self, blocks, scales: round_by(blocks, np.abs(blocks.max(axis=-1)) / 127),
)
WrongSteps.add_fault(
    "activation-bytes-wrap",
    "an activation of 128 steps becomes -128",
    "noise: the largest activation of many blocks changes its sign",
    shows_on="q4_0",
    steps=lambda self, blocks, scales: (
        np.rint(divide(blocks, scales * 127 / 128)).astype(np.int64).astype(np.int8)
        * half(scales * 127 / 128)
    ),
)
WrongSteps.add_fault(
    "activation-blocks-of-64",
    "64 activations share a scale, not 32",
    UNSEEN,
    steps=lambda self, blocks, scales: round_by(blocks, largest_of_two(scales)),
)
WrongSteps.add_fault(
    "activation-scale-of-block-before",
    "each block is multiplied by the scale of the previous block",
    WORSE,
    steps=lambda self, blocks, scales: (
        np.rint(divide(blocks, scales)) * half(np.roll(scales, 1, axis=-1))
    ),
)
WrongSteps.add_fault(
    "activation-scale-of-half-a-block",
    "the largest activation is searched for only in the first half of a block",
    "text is worse: large activations are clipped",
    steps=lambda self, blocks, scales: clip_to_first_half(blocks),
)
WrongSteps.add_fault(
    "activation-zeros-divided",
    "a block of zeros is divided by its scale, which is zero",
    "NaN as soon as all 32 activations of a block are zero",
    site="products",
    layer=None,
    steps=lambda self, blocks, scales: np.rint(blocks / scales[..., None]) * half(scales),
)
WrongSteps.add_fault(
    "activations-of-seven-bits",
    "activations are rounded to 7 bits, not to 8",
    LITTLE,
    shows_on="q4_0",
    steps=lambda self, blocks, scales: round_by(blocks, scales * 127 / 63),
)
WrongSteps.add_fault(
    "activation-scales-in-bf16",
    "scales of activations are stored in BF16",
    "no effect that a reader sees: blocks are too small by up to 0.8 per cent",
    steps=lambda self, blocks, scales: np.rint(divide(blocks, scales)) * in_bf16(scales)[..., None],
)


def clip_to_first_half(blocks: Any) -> Any:
    scales = np.abs(blocks[..., : blocks.shape[-1] // 2]).max(axis=-1) / 127
    return np.rint(divide(blocks, scales)).clip(-127, 127) * half(scales)


class Sums(WrongConversion):
    """Wrong sums. `changed` changes the sums by which minima are multiplied: (tokens, sums)."""

    kind = ""  # type of the weights, if only their minima are wrong

    def sums(self, right: Callable[..., F64 | None], x: F32, weight: Weight) -> F64 | None:
        found = right(x, weight)
        if self.kind not in ("", weight.format.name):
            return found
        group = activation_format(weight.format).summed
        if found is None and group:
            ops: Any = self.loaded.ops
            blocks = ops.activations(x, weight).reshape(len(x), x.shape[-1] // group, group)
            found = blocks.sum(axis=-1)
        return found if found is None else self.changed(found)

    def changed(self, right: F64) -> F64:
        raise NotImplementedError


Sums.add_fault(
    "activation-sums-missing",
    "minima are left out of products",
    "noise from the first token on",
    shows_on="arch:llama:Q5_1",
    changed=lambda self, right: right * 0,
)
Sums.add_fault(
    "activation-sums-of-block-before",
    "minima are multiplied by the sum of the previous block",
    WORSE,
    shows_on="arch:llama:Q4_1",
    changed=lambda self, right: np.roll(right, 1, axis=-1),
)
Sums.add_fault(
    "activation-sums-of-sixteen",
    "one of the two sums of a group of 32 is used twice",
    WORSE,
    shows_on="arch:llama:Q4_K",
    changed=lambda self, right: np.repeat(right[..., ::2], 2, axis=-1),
)
Sums.add_fault(
    "activation-sums-reversed",
    "minima of Q2_K are multiplied by the sums of other groups",
    WORSE,
    source="aprender #1924",
    shows_on="arch:llama:Q2_K",
    kind="Q2_K",
    changed=lambda self, right: right.reshape(len(right), right.shape[-1] // 16, 16)[
        ..., ::-1
    ].reshape(right.shape),
)


def reverse_groups(sums: F64) -> F64:
    return sums.reshape(len(sums), sums.shape[-1] // 16, 16)[..., ::-1].reshape(sums.shape)


class HalvesTruncated(WrongConversion, name="mutant:activation-halves-truncated"):
    mistake = "activations are cut off to half precision towards zero"
    effect = UNSEEN
    shows_on = "arch:llama:F16"

    def activations(self, right: Convert, x: F32, weight: Weight) -> F64:
        found = right(x, weight)
        step = np.ldexp(1.0, np.frexp(found)[1] - 11)
        return np.where(np.abs(found) > np.abs(x), found - np.sign(found) * step, found)


class Bf16ForHalf(WrongConversion, name="mutant:activations-in-bf16"):
    """An engine that rounds activations to BF16 instead of half precision. `kind` is the type of
    the weights for which this happens."""

    mistake = "activations become BF16 if weights are in half precision"
    effect = LITTLE
    shows_on = "arch:llama:F16"
    kind = "F16"

    def activations(self, right: Convert, x: F32, weight: Weight) -> F64:
        if weight.format.name != self.kind:
            return right(x, weight)
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32) + np.uint32(0x8000)
        return in_bf16(bits.view(np.float32))


Bf16ForHalf.add_fault(
    "activations-of-f32-in-bf16",
    "activations become BF16 if weights are F32",
    shows_on="f32",
    kind="F32",
)
