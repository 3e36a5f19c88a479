"""The contract of a sampler: parameters as in llama.h, and a formula on candidates."""

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from lockstep.engine.errors import NotInModel
from lockstep.engine.registry import Registered
from lockstep.engine.samplers.parts.candidates import CandidateList
from lockstep.engine.samplers.parts.draws import Draws, MersenneTwister
from lockstep.engine.samplers.parts.ways import DEFINITION, Ways


class SamplerVocabulary(Protocol):
    """Texts and roles of tokens, for samplers that need them."""

    @property
    def pieces(self) -> Sequence[bytes]:
        """Return the bytes of each token; empty for control tokens."""

    @property
    def words(self) -> Sequence[bytes]:
        """Return the text of each token by itself, control tokens spelled out."""

    @property
    def spellings(self) -> Sequence[bytes]:
        """Return the bytes of each token inside a text, control tokens spelled out."""

    @property
    def ends(self) -> Collection[int]:
        """Return the tokens that end a generation."""

    @property
    def end_of_turn(self) -> int | None: ...

    def tokenize(self, text: bytes) -> list[int]: ...

    def find_special(self, text: bytes) -> int | None:
        """Return the id of the token with this text, control tokens included; None if there is
        none."""


@dataclass(kw_only=True)
class Sampler(Registered):
    """Stage of a chain. Fields of subclasses have the names of the constructor's parameters in
    llama.h.
    """

    ways: Ways = DEFINITION

    @property
    def draw(self) -> float | None:
        """Return the next draw; None if this sampler draws nothing."""
        return None

    def apply(self, c: CandidateList) -> CandidateList:
        """Return the remaining candidates with their logits."""
        raise NotImplementedError

    def permits(self, token: int) -> bool:
        """Return whether the token may be accepted; by default every token may."""
        return True

    def accept(self, token: int) -> None:
        """Remember a token that was sampled or is part of the prompt."""

    def reset(self) -> None:
        """Forget the accepted and drawn tokens."""

    def follow(self, before: CandidateList, after: CandidateList) -> None:
        """Continue as if this sampler had turned the list `before` into `after`, and had chosen
        the token that is selected in `after`.
        """

    def clone(self) -> Self:
        """Return a copy that continues like the original. State is never changed in place, so both
        samplers may share it.
        """
        return copy.copy(self)


@dataclass(kw_only=True)
class ReadingSampler(Sampler):
    """A sampler that uses the texts of tokens."""

    vocabulary: SamplerVocabulary | None = field(default=None, repr=False)

    @property
    def known(self) -> SamplerVocabulary:
        if self.vocabulary is None:
            raise NotInModel(f"{self.name} needs a vocabulary, but there is none")
        return self.vocabulary


@dataclass(kw_only=True)
class DrawingSampler(Sampler):
    """A sampler with a random generator."""

    seed: int
    source: Draws = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.reset()

    @property
    def draw(self) -> float | None:
        return self.source.clone().double()

    def reset(self) -> None:
        self.source = MersenneTwister(self.seed)

    def clone(self) -> Self:
        other = super().clone()
        other.source = self.source.clone()
        return other
