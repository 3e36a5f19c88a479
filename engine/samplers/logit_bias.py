"""logit_bias: adds numbers to the logits of some tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.engine.samplers.base import Sampler
from lockstep.engine.samplers.parts.candidates import CandidateList, F
from lockstep.engine.samplers.parts.ways import Accident


@dataclass(kw_only=True)
class LogitBias(Sampler, name="logit_bias"):
    biases: Sequence[tuple[int, float]]  # token, bias

    def apply(self, c: CandidateList) -> CandidateList:
        """Add the biases to the logits; several biases for a token add up."""
        if not self.biases:
            return c
        logits, elsewhere = c.logits.copy(), dict[int, list[float]]()
        for token, bias in self.biases:
            if 0 <= token < len(c) and c.ids[token] == token:
                logits[token] += F(bias)
            else:
                elsewhere.setdefault(token, []).append(bias)
        if Accident.BIAS_ONCE in self.ways.accidents:
            elsewhere = {token: every[:1] for token, every in elsewhere.items()}
        for i, token in enumerate(c.ids.tolist()):
            for bias in elsewhere.get(token, ()):
                logits[i] += F(bias)
        keeps = Accident.STALE_SORTED in self.ways.accidents
        return c.change(logits=logits, sorted=c.sorted and keeps)
