"""dist: draws one candidate by its probability."""

from dataclasses import dataclass

import numpy as np

from lockstep.engine.samplers.base import DrawingSampler
from lockstep.engine.samplers.parts.candidates import CandidateList, F


@dataclass(kw_only=True)
class Dist(DrawingSampler, name="dist"):
    def apply(self, c: CandidateList) -> CandidateList:
        """Select the first candidate at which the sum of weights reaches draw * sum of all."""
        if len(c) == 1:  # a draw is made even for a single candidate
            self.source.double()
            return c.change(selected=0, p=np.ones(1, F))
        weights = self.ways.exp(c.logits - self.ways.largest(c)).astype(np.float64)
        sums = np.add.accumulate(weights)
        reached = np.flatnonzero(sums >= sums[-1] * self.source.double())
        return c.change(
            p=np.asarray(weights / sums[-1], F),
            selected=int(reached[0]) if len(reached) else len(c) - 1,
        )
