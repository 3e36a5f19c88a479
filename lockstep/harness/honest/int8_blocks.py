"""Converts activations to bytes with a float32 scale for each block of 64."""

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.products import is_in_blocks
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.honest.base import HonestEngine


class InInt8Blocks(Mirror):
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


class Int8Blocks(HonestEngine, name="honest:activations-int8-blocks"):
    """What llama2.c and its many ports do with groups of 64."""

    ops = InInt8Blocks
    design = "activations in bytes, a float32 scale for each 64"
    shows_on = "q8_0"
