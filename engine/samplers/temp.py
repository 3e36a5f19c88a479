"""temp: divides logits by the temperature."""

from dataclasses import dataclass

import numpy as np

from lockstep.engine.samplers.base import Sampler
from lockstep.engine.samplers.greedy import first_largest
from lockstep.engine.samplers.parts.candidates import CandidateList, F


@dataclass(kw_only=True)
class Temp(Sampler, name="temp"):
    t: float

    def apply(self, c: CandidateList) -> CandidateList:
        return divide_by_temperature(c, F(self.t))


def divide_by_temperature(c: CandidateList, t: np.float32) -> CandidateList:
    """Return the list with logits / t. If t is 0, all logits but the largest become minus
    infinity."""
    if t > 0:
        return c.change(logits=c.logits / t)
    at = first_largest(c.logits)
    logits = np.full(len(c), -np.inf, F)
    logits[at] = c.logits[at]
    return c.change(logits=logits)
