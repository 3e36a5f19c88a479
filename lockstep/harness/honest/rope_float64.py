"""Computes the angles of rope in float64, and all else in float32."""

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.reference import I32, RopeParams
from lockstep.engine.ops.rotation import from_powers
from lockstep.harness.honest.base import HonestEngine


class WideAngles(Mirror):
    def rotations(self, positions: I32, params: RopeParams) -> tuple[F64, F64]:
        cos, sin = (t.astype(np.float32) for t in from_powers(positions, params))
        return cos.astype(np.float64), sin.astype(np.float64)


class RopeFloat64(HonestEngine, name="honest:rope-float64"):
    """Engines that make their table of cosines once, in double."""

    ops = WideAngles
    design = "angles in float64"
