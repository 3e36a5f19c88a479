"""Computes the sigmoid of SiLU as half of 1 + tanh(x / 2), in float32."""

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.harness.honest.base import HonestEngine

HALF = np.float32(0.5)


class ByTanh(Mirror):
    def swiglu(self, gate: F32, up: F32) -> F32:
        out: F32 = gate * (HALF + HALF * np.tanh(HALF * gate)) * up
        return out


class SiluTanh(HonestEngine, name="honest:silu-tanh"):
    """Compilers that have a fast tanh and no fast sigmoid, such as XLA."""

    ops = ByTanh
    design = "sigmoid by way of tanh"
