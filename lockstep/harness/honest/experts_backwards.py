"""Adds up the chosen experts from the last to the first, in float32."""

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.harness.honest.base import HonestEngine


class Backwards(Mirror):
    def sum_experts(self, x: F32) -> F32:
        return super().sum_experts(x[:, ::-1])


class ExpertsBackwards(HonestEngine, name="honest:experts-backwards"):
    """Engines whose sum goes by the order in which experts are done."""

    ops = Backwards
    design = "experts summed from the last to the first"
    shows_on = "moe-q8_0"
