"""penalties: makes accepted tokens less likely, once per token and once per occurrence."""

from collections import Counter
from dataclasses import dataclass, field

from lockstep.engine.samplers.base import Sampler
from lockstep.engine.samplers.parts.candidates import CandidateList, F


@dataclass(kw_only=True)
class Penalties(Sampler, name="penalties"):
    penalty_last_n: int  # number of tokens that count; 0 or less: none
    penalty_repeat: float  # applied once for each token
    penalty_freq: float  # applied for each occurrence
    penalty_present: float  # applied once for each token
    tokens: list[int] = field(default_factory=list, init=False, repr=False)

    @property
    def is_off(self) -> bool:
        values = (self.penalty_repeat, self.penalty_freq, self.penalty_present)
        return self.penalty_last_n <= 0 or tuple(map(float, map(F, values))) == (1, 0, 0)

    def accept(self, token: int) -> None:
        if self.penalty_last_n > 0:
            self.tokens = [*self.tokens, token][-self.penalty_last_n :]

    def reset(self) -> None:
        self.tokens = []

    def apply(self, c: CandidateList) -> CandidateList:
        if self.is_off:
            return c
        logits, counts = c.logits.copy(), Counter(self.tokens)
        repeat, present = F(self.penalty_repeat), F(self.penalty_present)
        for i, token in enumerate(c.ids.tolist()):
            if count := counts.get(token):
                x = logits[i]
                x = x * repeat if x <= 0 else x / repeat
                logits[i] = x - (F(count) * F(self.penalty_freq) + present)
        return c.change(logits=logits, sorted=False)
