"""Computes the exponential of SiLU as a power of two, in float32."""

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.harness.honest.base import HonestEngine

LOG2_E = np.float32(1.4426950408889634)


class ByExp2(Mirror):
    def swiglu(self, gate: F32, up: F32) -> F32:
        with np.errstate(over="ignore"):
            out: F32 = gate / (np.float32(1) + np.exp2(-gate * LOG2_E)) * up
        return out


class SiluExp2(HonestEngine, name="honest:silu-exp2"):
    """GPUs, whose one instruction is a power of two (__expf of CUDA)."""

    ops = ByExp2
    design = "exp(x) as 2^(x * log2(e)) in float32"
