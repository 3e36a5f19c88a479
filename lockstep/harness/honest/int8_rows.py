"""Converts activations to bytes with one float32 scale for each row."""

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.products import is_in_blocks
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.honest.base import HonestEngine


class InInt8Rows(Mirror):
    def activations(self, x: F32, weight: Weight) -> F64:
        if not is_in_blocks(weight.format):
            return super().activations(x, weight)
        scale = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
        with np.errstate(all="ignore"):
            steps = np.rint(x / scale)
        return np.where(scale == 0, 0, steps.astype(np.float64) * scale)

    def sums(self, x: F32, weight: Weight) -> F64 | None:
        return None


class Int8Rows(HonestEngine, name="honest:activations-int8-rows"):
    """Kernels that quantise activations token by token, as those of torchao do."""

    ops = InInt8Rows
    design = "activations in bytes, a float32 scale for each token"
    shows_on = "q8_0"
