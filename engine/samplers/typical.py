"""typical: keeps the candidates whose surprise is nearest to the entropy, until their
probabilities sum to p."""

from dataclasses import dataclass

import numpy as np

from lockstep.engine.samplers.base import Sampler
from lockstep.engine.samplers.parts.candidates import F32, CandidateList, F
from lockstep.engine.samplers.parts.ways import Accident


@dataclass(kw_only=True)
class Typical(Sampler, name="typical"):
    p: float  # 1 or more: keeps all candidates
    min_keep: int = 1

    def apply(self, c: CandidateList) -> CandidateList:
        if F(self.p) >= 1:
            return c
        c = self.ways.softmax(c, sort=True)
        order = self.ways.ascending(self.distances(c.p))
        enough = self.ways.running(c.p[order]) > F(self.p)
        enough[: max(0, self.min_keep - 1)] = False
        found = np.flatnonzero(enough)
        return c.take(order[: int(found[0]) + 1 if len(found) else len(c)], sorted=False)

    def distances(self, p: F32) -> F32:
        """Return how far each surprise is from the mean surprise. p: (candidates,)"""
        log = self.ways.log(p)
        terms = -p * log
        if Accident.TYPICAL_ZERO not in self.ways.accidents:
            terms = np.where(p > 0, terms, F(0))
        return np.asarray(np.abs(-log - self.ways.total(terms)), F)
