"""mirostat: top-k with a k that keeps the surprise of chosen tokens near tau."""

from dataclasses import dataclass

import numpy as np

from lockstep.engine.samplers.parts.candidates import F32, F
from lockstep.engine.samplers.parts.learning import LearningSampler
from lockstep.engine.samplers.parts.libstdcxx import INT_END
from lockstep.engine.samplers.parts.ways import Accident


@dataclass(kw_only=True)
class Mirostat(LearningSampler, name="mirostat"):
    n_vocab: int
    m: int  # number of candidates from which the exponent of Zipf's law is estimated

    def size(self, p: F32) -> int:
        """Return the number of candidates to keep. p: (candidates,), sorted."""
        k, accidents = self.estimate(p), self.ways.accidents
        if np.isnan(k):
            return 1 if Accident.MIROSTAT_ZERO in accidents else len(p)
        if k >= INT_END:
            return 1 if Accident.MIROSTAT_OVERFLOW in accidents else len(p)
        return min(max(int(max(k, F(1))), 1), len(p))

    def estimate(self, p: F32) -> np.float32:
        """Return k as a number, which may be NaN."""
        if Accident.MIROSTAT_ZERO not in self.ways.accidents:
            p = p[p > 0]
        n = len(p) - 1 if self.m < 1 else min(self.m - 1, len(p) - 1)
        i = np.arange(n, dtype=F)
        t = self.ways.log((i + F(2)) / (i + F(1)))
        b = self.ways.log(p[:n] / p[1 : n + 1])
        s = self.ways.total(t * b) / self.ways.total(t * t)
        eps = s - F(1)
        power = self.ways.pow
        held = eps * power(2, self.mu) / (F(1) - power(self.n_vocab, -eps))
        return power(held, F(1) / s)
