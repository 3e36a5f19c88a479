"""Applies SiLU and forgets to multiply by the other branch."""

import numpy as np

from engine.ops.mirror import Mirror
from engine.ops.reference import Reference
from engine.quants.base import F32
from harness.mutants.base import Mutant


class Ungated(Mirror):
    def swiglu(self, gate: F32, up: F32) -> F32:
        return super().swiglu(gate, np.ones_like(up))


class SiluWithoutGate(Mutant, name="mutant:silu-without-gate"):
    mistake = "SiLU without the gate"
    site = "ffn_swiglu"

    def make_ops(self) -> Reference:
        return Ungated(self.settings.n_threads, self.settings.n_ctx)
