"""Normalises with the other of the usual eps: 1e-6 where the model says 1e-5, or the reverse."""

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.base import Mutant


class OtherEps(Mirror):
    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        return super().rms_norm(x, weight, 1e-6 if eps > 3e-6 else 1e-5)


class WrongEps(Mutant, name="mutant:wrong-eps"):
    ops = OtherEps
    mistake = "eps 1e-6 for 1e-5, or the reverse"
    group = "norms"
    effect = "nothing that a reader sees; small activations are off"
    first_of_all = True
    site = "attn_norm"
