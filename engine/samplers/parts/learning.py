"""Part that both versions of mirostat share: mu adapts to the surprise of chosen tokens."""

from dataclasses import dataclass, field

import numpy as np

from lockstep.engine.samplers.base import DrawingSampler
from lockstep.engine.samplers.parts.candidates import F32, CandidateList, F
from lockstep.engine.samplers.parts.draws import choose


@dataclass(kw_only=True)
class LearningSampler(DrawingSampler):
    """A sampler that keeps the surprise of chosen tokens near tau."""

    tau: float
    eta: float
    mu: np.float32 = field(init=False, repr=False)

    def size(self, p: F32) -> int:
        """Return the number of candidates to keep. p: (candidates,), sorted."""
        raise NotImplementedError

    def reset(self) -> None:
        super().reset()
        self.mu = F(2) * F(self.tau)

    def apply(self, c: CandidateList) -> CandidateList:
        c = self.ways.softmax(c, sort=True)
        c = self.ways.softmax(c.take(slice(self.size(c.p))), sort=True)
        chosen = choose(c.p, self.source)
        self.learn(c.p[chosen])
        return c.change(selected=chosen)

    def follow(self, before: CandidateList, after: CandidateList) -> None:
        self.learn(self.ways.softmax(after, sort=False).p[after.selected])

    def learn(self, p: np.float32) -> None:
        """Change mu by the error of a chosen token's surprise. p: the token's probability."""
        self.mu = F(self.mu - F(self.eta) * (-self.ways.log2_of(p) - F(self.tau)))
