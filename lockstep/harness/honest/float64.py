"""Computes everything in float64 and converts no activation."""

from lockstep.engine.ops.reference import ReferenceOps as Ops
from lockstep.harness.honest.base import HonestEngine


class Float64(HonestEngine, name="honest:float64"):
    """What numpy does with code that names no types."""

    design = "float64 throughout, activations as they are"

    def make_ops(self) -> Ops:
        return Ops()
