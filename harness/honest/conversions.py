"""Honest engines that convert activations to another format than llama.cpp, for products with
quantised weights."""

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.products import is_in_blocks
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.honest.base import HonestEngine


class InBF16(Mirror):
    """Converts activations to BF16 for products with quantised weights."""

    def activations(self, x: F32, weight: Weight) -> F64:
        if not is_in_blocks(weight.format):
            return super().activations(x, weight)
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
        even = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return (even & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)

    def sums(self, x: F32, weight: Weight) -> F64 | None:
        return None


# used by kernels of GPUs, and of CPUs that multiply BF16
Bf16 = HonestEngine.add_design(
    "activations-bf16", "activations in BF16 before quantised weights", ops=InBF16, shows_on="q8_0"
)


class InInt8Blocks(Mirror):
    """Converts activations to bytes with a float32 scale for each block of 64."""

    def activations(self, x: F32, weight: Weight) -> F64:
        if not is_in_blocks(weight.format):
            return super().activations(x, weight)
        rest = -x.shape[-1] % 64
        filled = np.pad(x, (*[(0, 0)] * (x.ndim - 1), (0, rest)))
        blocks = filled.reshape(*x.shape[:-1], filled.shape[-1] // 64, 64)
        most = np.abs(blocks).max(axis=-1, keepdims=True)
        with np.errstate(all="ignore"):
            steps = np.rint(blocks * (np.float32(127) / most))
        wide = steps.astype(np.float64) * (most / np.float32(127))
        return np.where(most == 0, 0, wide).reshape(filled.shape)[..., : x.shape[-1]]

    def sums(self, x: F32, weight: Weight) -> F64 | None:
        return None


# used by llama2.c and its many ports, with groups of 64
Int8Blocks = HonestEngine.add_design(
    "activations-int8-blocks",
    "activations in bytes, a float32 scale for every 64",
    ops=InInt8Blocks,
    shows_on="q8_0",
)


class InInt8Rows(Mirror):
    """Converts activations to bytes with one float32 scale for each row."""

    def activations(self, x: F32, weight: Weight) -> F64:
        if not is_in_blocks(weight.format):
            return super().activations(x, weight)
        scale = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
        with np.errstate(all="ignore"):
            steps = np.rint(x / scale)
        return np.where(scale == 0, 0, steps.astype(np.float64) * scale)

    def sums(self, x: F32, weight: Weight) -> F64 | None:
        return None


# used by kernels that quantise activations by token, such as torchao's
Int8Rows = HonestEngine.add_design(
    "activations-int8-rows",
    "activations in bytes, a float32 scale for each token",
    ops=InInt8Rows,
    shows_on="q8_0",
)
