"""Multiplies codes of quantised weights as they are, and offsets by sums of activations."""

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.products import LESS_OFFSET, without
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.honest.base import HonestEngine
from lockstep.harness.honest.sums_one_by_one import summed


class CodesAndOffsets(Mirror):
    def linear(self, x: F32, weight: Weight) -> F32:
        codes = LESS_OFFSET.get(weight.format.name)
        if codes is None:
            return super().linear(x, weight)
        below = without(weight, slice(0, weight.shape[0]), *codes)  # what a code of zero stands for
        above = weight.values() - below
        out = np.empty((len(x), weight.shape[0]), np.float32)
        for row, token in zip(out, x, strict=True):
            row[:] = summed(token * above) + summed(token * below)
        return out


class OffsetsApart(HonestEngine, name="honest:offsets-apart"):
    """Metal's kernels of llama.cpp: d * (sum of q * x - 8 * sum of x)."""

    ops = CodesAndOffsets
    design = "codes and offsets of weights added up apart, activations as they are"
    shows_on = "q4_0"
