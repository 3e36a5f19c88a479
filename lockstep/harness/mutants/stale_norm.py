"""Computes the norm and does not bind the result: the old activations flow on."""

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.base import Mutant


class Unbound(Mirror):
    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        super().rms_norm(x, weight, eps)
        return x


class StaleNorm(Mutant, name="mutant:stale-norm"):
    ops = Unbound
    mistake = "the norm's result is not bound, so the old activations flow on"
    group = "norms"
    effect = "activations grow from layer to layer"
    first_of_all = True
    site = "attn_norm"
