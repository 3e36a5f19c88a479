"""temp_ext: a temperature that depends on the entropy, within delta of t."""

from dataclasses import dataclass

import numpy as np

from lockstep.engine.samplers.base import Sampler
from lockstep.engine.samplers.parts.candidates import F32, CandidateList, F
from lockstep.engine.samplers.parts.ways import SumPrecision
from lockstep.engine.samplers.temp import divide_by_temperature


@dataclass(kw_only=True)
class TempExt(Sampler, name="temp_ext"):
    t: float
    delta: float  # 0 or less: only t counts
    exponent: float

    def apply(self, c: CandidateList) -> CandidateList:
        """Apply the temperature t = low + (high - low) * (entropy / largest entropy) ^ exponent."""
        if F(self.delta) <= 0:
            return divide_by_temperature(c, F(self.t))
        if len(c) <= 1:
            return c
        low, high = max(F(0), F(self.t) - F(self.delta)), F(self.t) + F(self.delta)
        most = -self.ways.log_of(F(1) / F(len(c)))
        c = self.ways.softmax(c, sort=True)
        share = self.ways.pow(self.entropy(c.p) / most, F(self.exponent))
        c = divide_by_temperature(c, low + (high - low) * share)
        e = np.exp(c.logits.astype(np.float64) - np.float64(c.logits[0]))
        return c.change(p=np.asarray(e.astype(F) / np.add.accumulate(e)[-1], F))

    def entropy(self, p: F32) -> np.float32:
        p = p[p > 0]
        terms = p * self.ways.log(p)
        if self.ways.sums is SumPrecision.DOUBLE:
            return F(-self.ways.total(terms))
        return F(np.subtract.accumulate(np.concatenate([np.zeros(1, F), terms]))[-1])
