"""Takes the cells of a softmax in blocks; a block that a row does not see at all gives NaN."""

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import Bools
from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.base import Mutant

BLOCK = 16  # cells


class BlockWise(Mirror):
    def soft_max(self, x: F32, scale: float, visible: Bools | None) -> F32:
        out = super().soft_max(x, scale, visible)
        if visible is None:
            return out
        for start in range(0, x.shape[-1], BLOCK):
            # the block's largest score is -inf, and -inf - -inf is NaN
            hidden = ~visible[:, start : start + BLOCK].any(axis=-1)
            out[:, hidden] = np.nan
        return out


class SoftmaxNan(Mutant, name="mutant:softmax-nan"):
    ops = BlockWise
    mistake = "a softmax that gives NaN on a fully masked row"
    group = "attention"
    effect = "NaN logits with some lengths of the prompt"
    first_of_all = True
    site = "kq_soft_max"
