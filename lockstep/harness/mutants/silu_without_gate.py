"""Applies SiLU and forgets to multiply by the other branch."""

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.base import Mutant


class Ungated(Mirror):
    def swiglu(self, gate: F32, up: F32) -> F32:
        return super().swiglu(gate, np.ones_like(up))


class SiluWithoutGate(Mutant, name="mutant:silu-without-gate"):
    ops = Ungated
    mistake = "SiLU without the gate"
    group = "activations"
    effect = "noise from the first token on"
    first_of_all = True
    site = "ffn_swiglu"
