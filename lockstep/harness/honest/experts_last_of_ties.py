"""Of experts with the same probability it chooses the one with the highest id."""

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import I32
from lockstep.engine.quants.base import F32
from lockstep.harness.honest.base import HonestEngine


class LastOfTies(Mirror):
    def top_k(self, probs: F32, n: int) -> I32:
        last = probs.shape[-1] - 1
        ids: I32 = (last - super().top_k(probs[..., ::-1], n)).astype(np.int32)
        return ids


class ExpertsLastOfTies(HonestEngine, name="honest:experts-last-of-ties"):
    """A sort that is not stable, or that goes up and is read from its end."""

    ops = LastOfTies
    design = "the highest id wins a tie between experts"
    shows_on = "moe-q8_0"
