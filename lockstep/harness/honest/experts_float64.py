"""Adds up the chosen experts in float64."""

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import ReferenceOps
from lockstep.engine.quants.base import F32
from lockstep.harness.honest.base import HonestEngine


class WideSum(Mirror):
    def sum_experts(self, x: F32) -> F32:
        return ReferenceOps().sum_experts(x)


class ExpertsFloat64(HonestEngine, name="honest:experts-float64"):
    """Engines with one wide accumulator for a row."""

    ops = WideSum
    design = "experts summed in float64"
    shows_on = "moe-q8_0"
