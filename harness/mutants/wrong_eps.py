"""Normalises with eps 1e-6 where the model says 1e-5."""

from engine.ops.mirror import Mirror
from engine.ops.reference import Reference
from engine.quants.base import F32
from harness.mutants.base import Mutant


class SmallEps(Mirror):
    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        return super().rms_norm(x, weight, 1e-6)


class WrongEps(Mutant, name="mutant:wrong-eps"):
    mistake = "eps 1e-6 for 1e-5"
    site = "attn_norm"

    def make_ops(self) -> Reference:
        return SmallEps(self.settings.n_threads, self.settings.n_ctx)
