"""Activations converted wrongly before a product: rounding, scales, sums."""

from typing import Any, ClassVar

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.products import activation_format
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.mutants.base import Mutant


class WrongConversion(Mirror):
    """Converts as llama.cpp does, but for `blocks` (.., blocks, 32) and their scales (.., blocks):
    subclasses change how they are rounded."""

    def activations(self, x: F32, weight: Weight) -> F64:
        kind = activation_format(weight.format)
        if kind.layout.names is None or not x.size:  # no rows have no blocks
            return super().activations(x, weight)
        blocks = x.reshape(*x.shape[:-1], -1, kind.block).astype(np.float64)
        with np.errstate(all="ignore"):
            found: F64 = self.steps(blocks, np.abs(blocks).max(axis=-1) / 127)
        return found.reshape(x.shape)

    def steps(self, blocks: Any, scales: Any) -> Any:
        raise NotImplementedError


def divided(blocks: Any, scales: Any) -> Any:
    whole = blocks / scales[..., None]
    return np.where(scales[..., None] == 0, 0, whole)


class Truncated(WrongConversion):
    def steps(self, blocks: Any, scales: Any) -> Any:
        return np.trunc(divided(blocks, scales)) * half(scales)[..., None]


def half(x: Any) -> Any:
    return x.astype(np.float16).astype(np.float64)


class ActivationsTruncated(Mutant, name="mutant:activations-truncated"):
    ops = Truncated
    mistake = "activations are cut off towards zero instead of rounded"
    group = "rounding"
    effect = "text is a little worse"
    shows_on = "q8_0"
    site = "Qcur"


class Mismatched(WrongConversion):
    def steps(self, blocks: Any, scales: Any) -> Any:
        whole = np.rint(divided(blocks, scales * 127 / 128)).clip(-128, 127)
        return whole * half(scales)[..., None]


class ScalesMismatched(Mutant, name="mutant:activation-scales-mismatched"):
    ops = Mismatched
    mistake = "activations are divided by 1/128 of the largest and multiplied by 1/127"
    group = "rounding"
    effect = "nothing that a reader sees: all products are larger by 0.8 per cent"
    shows_on = "q8_0"
    site = "Qcur"


class OfMaximum(WrongConversion):
    def steps(self, blocks: Any, scales: Any) -> Any:
        scales = np.abs(blocks.max(axis=-1)) / 127
        return np.rint(divided(blocks, scales)).clip(-128, 127) * half(scales)[..., None]


class ScaleOfMaximum(Mutant, name="mutant:activation-scale-of-maximum"):
    ops = OfMaximum
    mistake = "the scale is of the largest activation, not of the largest magnitude"
    group = "rounding"
    effect = "text is worse"
    shows_on = "q4_0"
    site = "Qcur"


class Wrapping(WrongConversion):
    def steps(self, blocks: Any, scales: Any) -> Any:
        scales = scales * 127 / 128
        whole = np.rint(divided(blocks, scales)).astype(np.int64).astype(np.int8)
        return whole * half(scales)[..., None]


class BytesWrap(Mutant, name="mutant:activation-bytes-wrap"):
    ops = Wrapping
    mistake = "128 steps of an activation become -128"
    group = "rounding"
    effect = "noise: the largest activation of many blocks changes its sign"
    shows_on = "q4_0"
    site = "Qcur"


class OfTwoBlocks(WrongConversion):
    def steps(self, blocks: Any, scales: Any) -> Any:
        pairs = scales.copy()
        even = scales.shape[-1] // 2 * 2
        both = scales[..., :even].reshape(*scales.shape[:-1], -1, 2).max(axis=-1)
        pairs[..., :even] = np.repeat(both, 2, axis=-1)
        return np.rint(divided(blocks, pairs)) * half(pairs)[..., None]


class BlocksOf64(Mutant, name="mutant:activation-blocks-of-64"):
    ops = OfTwoBlocks
    mistake = "64 activations share a scale, not 32"
    group = "rounding"
    effect = "nothing that a reader sees"
    shows_on = "q8_0"
    site = "Qcur"


class OfBlockBefore(WrongConversion):
    def steps(self, blocks: Any, scales: Any) -> Any:
        return np.rint(divided(blocks, scales)) * half(np.roll(scales, 1, axis=-1))[..., None]


class ScaleOfBlockBefore(Mutant, name="mutant:activation-scale-of-block-before"):
    ops = OfBlockBefore
    mistake = "each block is multiplied by the scale of the one before"
    group = "rounding"
    effect = "text is worse"
    shows_on = "q8_0"
    site = "Qcur"


class HalfMeasured(WrongConversion):
    def steps(self, blocks: Any, scales: Any) -> Any:
        scales = np.abs(blocks[..., : blocks.shape[-1] // 2]).max(axis=-1) / 127
        return np.rint(divided(blocks, scales)).clip(-127, 127) * half(scales)[..., None]


class HalfOfBlockMeasured(Mutant, name="mutant:activation-scale-of-half-a-block"):
    ops = HalfMeasured
    mistake = "the largest activation is looked for in the first half of a block"
    group = "rounding"
    effect = "text is worse: large activations are clipped"
    shows_on = "q8_0"
    site = "Qcur"


class NoZeros(WrongConversion):
    def steps(self, blocks: Any, scales: Any) -> Any:
        return np.rint(blocks / scales[..., None]) * half(scales)[..., None]


class ZerosDivided(Mutant, name="mutant:activation-zeros-divided"):
    ops = NoZeros
    mistake = "a block of zeros is divided by its scale, which is zero"
    group = "rounding"
    effect = "NaN, as soon as 32 activations are zero together"
    shows_on = "q8_0"
    site = "products"
    layer = None


class SevenBits(WrongConversion):
    def steps(self, blocks: Any, scales: Any) -> Any:
        return np.rint(divided(blocks, scales * 127 / 63)) * half(scales * 127 / 63)[..., None]


class ActivationsOfSevenBits(Mutant, name="mutant:activations-of-seven-bits"):
    ops = SevenBits
    mistake = "activations are rounded to 7 bits, not to 8"
    group = "rounding"
    effect = "text is a little worse"
    shows_on = "q4_0"
    site = "Qcur"


class InBf16(WrongConversion):
    def steps(self, blocks: Any, scales: Any) -> Any:
        bits = scales.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        return np.rint(divided(blocks, scales)) * bits.view(np.float32)[..., None]


class ScalesInBf16(Mutant, name="mutant:activation-scales-in-bf16"):
    ops = InBf16
    mistake = "scales of activations are kept in BF16"
    group = "rounding"
    effect = "nothing that a reader sees: blocks are too small by up to 0.8 per cent"
    shows_on = "q8_0"
    site = "Qcur"


class Sums(Mirror):
    """`changed`: the sums that minima are multiplied by, (tokens, sums)."""

    kind = ""  # of the weights, if these minima alone are wrong

    def sums(self, x: F32, weight: Weight) -> F64 | None:
        if self.kind not in ("", weight.format.name):
            return super().sums(x, weight)
        group = activation_format(weight.format).summed
        right = super().sums(x, weight)
        if right is None and group:
            blocks = self.activations(x, weight).reshape(len(x), x.shape[-1] // group, group)
            right = blocks.sum(axis=-1)
        return right if right is None else self.changed(right)

    def changed(self, right: F64) -> F64:
        raise NotImplementedError


class SumsMissing(Mutant, name="mutant:activation-sums-missing"):
    mistake = "minima are left out of products"
    group = "rounding"
    effect = "noise from the first token on"
    shows_on = "arch:llama:Q5_1"
    site = "Qcur"

    class ops(Sums):
        def changed(self, right: F64) -> F64:
            return right * 0


class SumsOfBlockBefore(Mutant, name="mutant:activation-sums-of-block-before"):
    mistake = "minima are multiplied by the sum of the block before"
    group = "rounding"
    effect = "text is worse"
    shows_on = "arch:llama:Q4_1"
    site = "Qcur"

    class ops(Sums):
        def changed(self, right: F64) -> F64:
            return np.roll(right, 1, axis=-1)


class SumsOfSixteen(Mutant, name="mutant:activation-sums-of-sixteen"):
    mistake = "of the two sums of a group of 32 one is taken twice"
    group = "rounding"
    effect = "text is worse"
    shows_on = "arch:llama:Q4_K"
    site = "Qcur"

    class ops(Sums):
        def changed(self, right: F64) -> F64:
            return np.repeat(right[..., ::2], 2, axis=-1)


class SumsOnWrongLanes(Mutant, name="mutant:activation-sums-reversed"):
    mistake = "minima of Q2_K meet the sums of other groups"
    group = "rounding"
    effect = "text is worse"
    source = "aprender #1924"
    shows_on = "arch:llama:Q2_K"
    site = "Qcur"

    class ops(Sums):
        kind = "Q2_K"

        def changed(self, right: F64) -> F64:
            runs = right.reshape(len(right), right.shape[-1] // 16, 16)
            return runs[..., ::-1].reshape(right.shape)


class InHalfDown(Mirror):
    def activations(self, x: F32, weight: Weight) -> F64:
        right = super().activations(x, weight)
        step = np.ldexp(1.0, np.frexp(right)[1] - 11)
        return np.where(np.abs(right) > np.abs(x), right - np.sign(right) * step, right)


class HalvesTruncated(Mutant, name="mutant:activation-halves-truncated"):
    ops = InHalfDown
    mistake = "activations are cut off to half precision towards zero"
    group = "rounding"
    effect = "nothing that a reader sees"
    shows_on = "arch:llama:F16"
    site = "Qcur"


class InBf16Whole(Mirror):
    kind: ClassVar[str]  # of the weights that converted activations meet

    def activations(self, x: F32, weight: Weight) -> F64:
        if weight.format.name != self.kind:
            return super().activations(x, weight)
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32) + np.uint32(0x8000)
        return (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


class Bf16ForHalf(Mutant, name="mutant:activations-in-bf16"):
    mistake = "activations become BF16 where weights are in half precision"
    group = "rounding"
    effect = "text is a little worse"
    shows_on = "arch:llama:F16"
    site = "Qcur"

    class ops(InBf16Whole):
        kind = "F16"


class Bf16ForF32(Mutant, name="mutant:activations-of-f32-in-bf16"):
    mistake = "activations become BF16 where weights are F32"
    group = "rounding"
    effect = "text is a little worse"
    site = "Qcur"

    class ops(InBf16Whole):
        kind = "F32"
