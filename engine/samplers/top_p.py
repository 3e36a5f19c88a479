"""top_p: keeps the fewest likeliest candidates whose probabilities sum to p or more."""

from dataclasses import dataclass

import numpy as np

from lockstep.engine.samplers.base import Sampler
from lockstep.engine.samplers.parts.candidates import CandidateList, F


@dataclass(kw_only=True)
class TopP(Sampler, name="top_p"):
    p: float  # 1 or more: keeps all candidates
    min_keep: int = 1

    def apply(self, c: CandidateList) -> CandidateList:
        """Keep the likeliest candidates. Probabilities are computed over the whole list, whose
        powers are summed in the order before sorting."""
        if F(self.p) >= 1:
            return c
        c = self.ways.softmax(c, sort=False)
        for size in self.ways.parts_to_sort(len(c)):
            part = c if c.sorted else c.take(self.ways.descending(c.logits, size), sorted=True)
            if (kept := self.size(part)) is not None:
                return part.take(slice(kept))
        return part

    def size(self, c: CandidateList) -> int | None:
        """Return how many candidates together reach p; None if even all of them do not reach p."""
        enough = self.ways.running(c.p) >= F(self.p)
        enough[: max(0, self.min_keep - 1)] = False
        found = np.flatnonzero(enough)
        return int(found[0]) + 1 if len(found) else None
