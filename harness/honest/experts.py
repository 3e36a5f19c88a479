"""Honest engines that process the chosen experts in another order, or add their outputs
differently."""

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import I32, ReferenceOps
from lockstep.engine.quants.base import F32
from lockstep.harness.honest.base import HonestEngine


class Backwards(Mirror):
    """Adds up the outputs of the chosen experts from the last to the first, in float32."""

    def sum_experts(self, x: F32) -> F32:
        return super().sum_experts(x[:, ::-1])


# found in engines that add experts in the order in which they finish
HonestEngine.add_design(
    "experts-backwards",
    "experts summed from the last to the first",
    ops=Backwards,
    shows_on="moe-q8_0",
)


class ById(Mirror):
    """Ops that process the chosen experts in order of their ids, and show them in this order."""

    def top_k(self, probs: F32, n: int) -> I32:
        return np.sort(super().top_k(probs, n), axis=-1)


# found in engines that loop over experts instead of choices, such as Mixtral in Hugging Face
# transformers
HonestEngine.add_design(
    "experts-by-id", "experts in the order of their ids", ops=ById, shows_on="moe-q8_0"
)


class WideSum(Mirror):
    """Adds up the outputs of the chosen experts in float64."""

    def sum_experts(self, x: F32) -> F32:
        return ReferenceOps().sum_experts(x)


# found in engines with one wide accumulator for a row
HonestEngine.add_design(
    "experts-float64", "experts summed in float64", ops=WideSum, shows_on="moe-q8_0"
)


class LastOfTies(Mirror):
    """Ops that choose the expert with the highest id if experts have the same probability."""

    def top_k(self, probs: F32, n: int) -> I32:
        last = probs.shape[-1] - 1
        ids: I32 = (last - super().top_k(probs[..., ::-1], n)).astype(np.int32)
        return ids


# result of an unstable sort, or of an ascending sort that is read from its end
HonestEngine.add_design(
    "experts-last-of-ties",
    "the highest id wins a tie between experts",
    ops=LastOfTies,
    shows_on="moe-q8_0",
)
