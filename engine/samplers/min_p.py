"""min_p: keeps the candidates that are at least p times as likely as the likeliest."""

from dataclasses import dataclass

import numpy as np

from lockstep.engine.samplers.base import Sampler
from lockstep.engine.samplers.parts.candidates import CandidateList, F

LEAST = -np.finfo(F).max


@dataclass(kw_only=True)
class MinP(Sampler, name="min_p"):
    p: float  # 0 or less: keeps all candidates
    min_keep: int = 1

    def apply(self, c: CandidateList) -> CandidateList:
        """Compare logits: p_i >= p * p_max means logit_i >= logit_max + log p. The order does not
        change.
        """
        if F(self.p) <= 0:
            return c
        log = self.ways.log_of(self.p)
        if not c.sorted:
            kept = np.flatnonzero(c.logits >= max(LEAST, F(np.fmax.reduce(c.logits))) + log)
            if len(kept) and len(kept) >= self.min_keep:
                return c.take(kept)
            c = self.ways.sort(c)
        below = c.logits < c.logits[0] + log
        below[: max(1, self.min_keep)] = False
        found = np.flatnonzero(below)
        return c.take(slice(int(found[0]) if len(found) else len(c)))
