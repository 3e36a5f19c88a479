"""greedy: takes the candidate with the largest logit, or the first of equal candidates."""

from dataclasses import dataclass

import numpy as np

from lockstep.engine.samplers.base import Sampler
from lockstep.engine.samplers.parts.candidates import F32, CandidateList


@dataclass(kw_only=True)
class GreedySampler(Sampler, name="greedy"):
    def apply(self, c: CandidateList) -> CandidateList:
        return c.change(selected=first_largest(c.logits))


def first_largest(logits: F32) -> int:
    """Return the index of the first largest logit; a NaN at index 0 wins."""
    if np.isnan(logits[0]):
        return 0
    return int(np.argmax(np.where(np.isnan(logits), -np.inf, logits)))
