"""Rotates elements i and i + n/2 (neox) where llama rotates adjacent ones, and the other way."""

from dataclasses import replace

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import I32, RopeParams
from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.base import Mutant


class HalfSplit(Mirror):
    def rope(self, x: F32, positions: I32, params: RopeParams) -> F32:
        return super().rope(x, positions, replace(params, halves=not params.halves))


class RopeHalfSplit(Mutant, name="mutant:rope-half-split"):
    ops = HalfSplit
    mistake = "rope on half-split pairs"
    group = "rope"
    effect = "plausible for a few tokens, then word salad"
    first_of_all = True
    site = "Qcur_rope"
