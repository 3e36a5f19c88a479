"""The sigmoid in SiLU computed with other functions, in float32."""

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.harness.honest.base import HonestEngine

LOG2_E = np.float32(1.4426950408889634)


class ByExp2(Mirror):
    """Computes the exponential in SiLU as a power of two, in float32."""

    def swiglu(self, gate: F32, up: F32) -> F32:
        with np.errstate(over="ignore"):
            out: F32 = gate / (np.float32(1) + np.exp2(-gate * LOG2_E)) * up
        return out


# used on GPUs, which have an instruction only for powers of two (__expf of CUDA)
HonestEngine.add_design("silu-exp2", "exp(x) as 2^(x * log2(e)) in float32", ops=ByExp2)


HALF = np.float32(0.5)


class ByTanh(Mirror):
    """Computes the sigmoid in SiLU as half of 1 + tanh(x / 2), in float32."""

    def swiglu(self, gate: F32, up: F32) -> F32:
        out: F32 = gate * (HALF + HALF * np.tanh(HALF * gate)) * up
        return out


# used by compilers that have a fast tanh but no fast sigmoid, such as XLA
SiluTanh = HonestEngine.add_design("silu-tanh", "sigmoid computed from tanh", ops=ByTanh)
