"""top_k: keeps the k largest logits."""

from dataclasses import dataclass

from lockstep.engine.samplers.base import Sampler
from lockstep.engine.samplers.parts.candidates import CandidateList


@dataclass(kw_only=True)
class TopK(Sampler, name="top_k"):
    k: int  # 0 or less: keeps all candidates

    def apply(self, c: CandidateList) -> CandidateList:
        if self.k <= 0:
            return c
        k = min(self.k, len(c))
        return c.take(slice(k) if c.sorted else self.ways.descending(c.logits, k), sorted=True)
