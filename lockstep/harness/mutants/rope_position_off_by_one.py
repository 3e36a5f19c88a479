"""Counts positions from one."""

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import I32, RopeParams
from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.base import Mutant


class FromOne(Mirror):
    def rope(self, x: F32, positions: I32, params: RopeParams) -> F32:
        return super().rope(x, positions + 1, params)


class RopePositionOffByOne(Mutant, name="mutant:rope-position-off-by-one"):
    """Logits do not move, because only distances count: nothing but the trace shows it."""

    ops = FromOne
    moves_logits = False
    mistake = "rope position off by one"
    group = "rope"
    effect = "nothing, until a cache of another engine is loaded"
    first_of_all = True
    site = "Qcur_rope"
