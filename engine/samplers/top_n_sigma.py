"""top_n_sigma: keeps the candidates within n standard deviations of the largest logit."""

from dataclasses import dataclass

import numpy as np

from lockstep.engine.samplers.base import Sampler
from lockstep.engine.samplers.parts.candidates import F32, CandidateList, F
from lockstep.engine.samplers.parts.ways import Accident, running_max


@dataclass(kw_only=True)
class TopNSigma(Sampler, name="top_n_sigma"):
    n: float  # 0 or less: keeps all candidates

    def apply(self, c: CandidateList) -> CandidateList:
        """Set the logits of all other candidates to minus infinity; the candidates stay in the
        list.
        """
        if F(self.n) <= 0 or len(c) <= 1:
            return c
        valid = c.logits[c.logits != -np.inf]
        if not len(valid):
            return c
        largest = running_max(np.concatenate([c.logits[:1], valid]))
        least = largest - F(self.n) * self.deviation(valid)
        return c.change(logits=np.where(c.logits < least, F(-np.inf), c.logits))

    def deviation(self, logits: F32) -> np.float32:
        mean = self.ways.total(logits) / F(len(logits))
        squares = (logits - mean).astype(np.float64) ** 2
        if Accident.SIGMA_OVERFLOW not in self.ways.accidents:
            return F(np.sqrt(squares.sum() / len(logits)))
        total = F(0)
        for square in squares:  # each sum is computed in double precision and rounded to float
            total = F(float(total) + square)
        return F(np.sqrt(total / F(len(logits))))
