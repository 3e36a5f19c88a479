"""adaptive_p: a draw that favours candidates near a target probability, which adapts to past
choices.
"""

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from lockstep.engine.samplers.base import DrawingSampler
from lockstep.engine.samplers.parts.candidates import F32, CandidateList, F
from lockstep.engine.samplers.parts.draws import choose
from lockstep.engine.samplers.parts.ways import Accident

WIDTH = F(1) / F(0.3)
PEAK, SHARPNESS = F(5), F(10)
LONGEST = 0.99  # maximum of `decay`


@dataclass(kw_only=True)
class AdaptiveP(DrawingSampler, name="adaptive_p"):
    target: float  # negative: off
    decay: float
    weighted: np.float32 = field(init=False, repr=False)
    weight: np.float32 = field(init=False, repr=False)
    pending: tuple[int, np.float32] | None = field(default=None, init=False, repr=False)

    @property
    def fade(self) -> np.float32:
        return F(min(max(F(self.decay), F(0)), F(LONGEST)))

    def reset(self) -> None:
        super().reset()
        self.weighted = F(self.target) / (F(1) - self.fade)
        self.weight = F(1) / (F(1) - self.fade)
        self.pending = None

    def apply(self, c: CandidateList) -> CandidateList:
        c = self.ways.softmax(c, sort=False)
        original = c.p
        if F(self.target) >= 0:
            c = self.ways.softmax(c.change(logits=self.reshape(c)), sort=False)
        chosen = choose(c.p, self.source)
        self.remember(int(c.ids[chosen]), original[chosen])
        return c.change(selected=chosen)

    def follow(self, before: CandidateList, after: CandidateList) -> None:
        p = self.ways.softmax(before, sort=False).p
        self.remember(after.token, p[np.flatnonzero(before.ids == after.token)[0]])

    def reshape(self, c: CandidateList) -> F32:
        """Return logits that peak where p is the target, which is adapted to the tokens chosen
        before.
        """
        target = np.clip(F(self.target), F(0), F(1))
        adapted = np.clip(F(2) * target - self.weighted / self.weight, F(0), F(1))
        far = np.abs((c.p - adapted) * WIDTH)
        logits = PEAK - SHARPNESS * far * far / (F(1) + far)
        return np.where(c.logits == -np.inf, c.logits, logits)

    def remember(self, token: int, p: np.float32) -> None:
        """Keep the chosen token until it is accepted. p: its original probability."""
        if F(self.target) >= 0:
            self.pending = token, p

    def accept(self, token: int) -> None:
        if self.pending is not None and self.pending[0] == token:
            self.weighted = self.pending[1] + self.fade * self.weighted
            self.weight = F(1) + self.fade * self.weight
        self.pending = None

    def clone(self) -> Self:
        other = super().clone()
        if Accident.ADAPTIVE_CLONE in self.ways.accidents:
            DrawingSampler.reset(other)
        return other
