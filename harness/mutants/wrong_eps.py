"""Normalises with eps 1e-6 where the model says 1e-5."""

from engine.ops.mirror import Mirror
from engine.quants.base import F32
from harness.mutants.base import Mutant


class SmallEps(Mirror):
    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        return super().rms_norm(x, weight, 1e-6)


class WrongEps(Mutant, name="mutant:wrong-eps"):
    ops = SmallEps
    mistake = "eps 1e-6 for 1e-5"
    site = "attn_norm"
