"""dry: makes tokens that would continue a repetition less likely; longer repetitions cost more."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lockstep.engine.samplers.base import Sampler, SamplerVocabulary
from lockstep.engine.samplers.parts.candidates import CandidateList, F

LARGEST_LOG = F(88.7228391)  # the exponential of a larger number overflows float32
LEAST_BASE = F(1.000001)  # smaller bases never overflow
MAX_BREAKER_BYTES, MAX_TAIL_TOKENS = 40, 20
# token that may begin a breaker -> the tokens that may follow
Tails = Mapping[int, Sequence[Sequence[int]]]


@dataclass(kw_only=True)
class Dry(Sampler, name="dry"):
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    seq_breakers: Sequence[bytes] = ()  # texts that end a repetition
    vocabulary: SamplerVocabulary | None = field(default=None, repr=False)
    tokens: list[int] = field(default_factory=list, init=False, repr=False)
    breakers: Tails = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.breakers = {}
        if self.seq_breakers and self.vocabulary is not None:
            self.breakers = tails_of(self.seq_breakers, self.vocabulary)

    @property
    def is_off(self) -> bool:
        off = F(self.dry_multiplier) == 0 or F(self.dry_base) < 1
        return bool(off) or self.dry_penalty_last_n <= 0

    def accept(self, token: int) -> None:
        if not self.is_off:
            self.tokens = [*self.tokens, token][-self.dry_penalty_last_n :]

    def reset(self) -> None:
        self.tokens = []

    def apply(self, c: CandidateList) -> CandidateList:
        """Subtract multiplier * base ^ (length - allowed length)."""
        if self.is_off or len(self.tokens) <= self.dry_allowed_length:
            return c
        back = self.tokens[::-1]  # the newest first
        limit = self.find_breaker(back)
        if limit < self.dry_allowed_length:
            return c
        lengths, logits = self.find_repeats(back, limit), c.logits.copy()
        for i, token in enumerate(c.ids.tolist()):
            alone = any(not tail for tail in self.breakers.get(token, ()))
            if token in lengths and not alone:
                logits[i] -= self.penalty(lengths[token])
        return c.change(logits=logits, sorted=False)

    def penalty(self, length: int) -> np.float32:
        exponent = length - self.dry_allowed_length
        base = F(self.dry_base)
        if base > LEAST_BASE:
            largest = int(LARGEST_LOG / self.ways.log_of(base))
            exponent = min(exponent, largest) if largest > 0 else exponent
        return F(float(F(self.dry_multiplier)) * float(base) ** exponent)

    def find_breaker(self, back: Sequence[int]) -> int:
        """Return how many of the newest tokens come after the last sequence breaker."""
        for i, head in enumerate(back):
            lengths = [
                len(tail)
                for tail in self.breakers.get(head, ())
                if len(tail) <= i and all(t == back[i - at - 1] for at, t in enumerate(tail))
            ]
            if lengths:
                return i - max(lengths)
        return len(back)

    def find_repeats(self, back: Sequence[int], limit: int) -> dict[int, int]:
        """Return the longest repeated run before each token that could continue one."""
        longest: dict[int, int] = {}
        for k in range(1, len(back)):
            same = 0
            while same + k < len(back) and back[same] == back[same + k]:
                same += 1
            length = min(same, limit)
            if length >= self.dry_allowed_length:
                longest[back[k - 1]] = max(longest.get(back[k - 1], 0), length)
        return longest


def tails_of(texts: Sequence[bytes], vocabulary: SamplerVocabulary) -> dict[int, list[list[int]]]:
    """Return the tokens that contain a text or its beginning, each with the tokens that must follow
    it."""
    found: dict[int, list[list[int]]] = {}
    for text in (text[:MAX_BREAKER_BYTES] for text in texts if text):
        for token, word in enumerate(vocabulary.words):
            if text in word:
                found.setdefault(token, []).append([])
                continue
            for at in (i for i in range(len(word)) if text.startswith(word[i:])):
                tail = vocabulary.tokenize(text[len(word) - at :])[:MAX_TAIL_TOKENS]
                if tail not in found.setdefault(token, []):
                    found[token].append(tail)
    return {token: tails for token, tails in found.items() if tails}
