"""xtc: with some probability, removes all but the least likely of the candidates that reach a
threshold.
"""

from dataclasses import dataclass

import numpy as np

from lockstep.engine.samplers.base import DrawingSampler
from lockstep.engine.samplers.parts.candidates import CandidateList, F


@dataclass(kw_only=True)
class Xtc(DrawingSampler, name="xtc"):
    p: float  # probability that the sampler acts
    t: float  # threshold; above 0.5, no two candidates reach it
    min_keep: int

    @property
    def is_off(self) -> bool:
        return bool(F(self.p) <= 0 or F(self.t) > F(0.5))

    @property
    def draw(self) -> float | None:
        return None if self.is_off else self.source.clone().single()

    def apply(self, c: CandidateList) -> CandidateList:
        if self.is_off or len(c) < 2 or self.source.single() > F(self.p):
            return c
        c = self.ways.softmax(c, sort=True)
        below = np.flatnonzero(~(c.p >= F(self.t)))
        first = max((int(below[0]) if len(below) else len(c)) - 1, 0)
        return c.take(slice(first, None)) if len(c) - first >= self.min_keep else c
