"""Leaves out the factor 1/sqrt(d) before the softmax."""

from typing import Any

from numpy.typing import NDArray

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import Bools
from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.base import Mutant


class Unscaled(Mirror):
    def soft_max(self, x: F32, scale: float, visible: Bools | None) -> F32:
        return super().soft_max(x, 1.0, visible)

    def flash_attn(self, q: F32, k: NDArray[Any], v: NDArray[Any], scale: float, *more: Any) -> F32:
        return super().flash_attn(q, k, v, 1.0, *more)


class MissingScale(Mutant, name="mutant:missing-scale"):
    ops = Unscaled
    mistake = "missing 1/sqrt(d)"
    group = "attention"
    effect = "attention looks at one token alone; the text repeats"
    first_of_all = True
    site = "kq_soft_max"
