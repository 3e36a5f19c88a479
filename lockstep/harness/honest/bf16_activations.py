"""Converts activations to BF16 where weights are quantised."""

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.products import is_in_blocks
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.honest.base import HonestEngine


class InBF16(Mirror):
    def activations(self, x: F32, weight: Weight) -> F64:
        if not is_in_blocks(weight.format):
            return super().activations(x, weight)
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
        even = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return (even & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)

    def sums(self, x: F32, weight: Weight) -> F64 | None:
        return None


class Bf16(HonestEngine, name="honest:activations-bf16"):
    """Kernels of graphics cards, and of CPUs that multiply BF16."""

    ops = InBF16
    design = "activations in BF16 before quantised weights"
    shows_on = "q8_0"
