"""A chain of samplers in any order, made from a description."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Self

import numpy as np

from lockstep.engine.errors import Unsupported
from lockstep.engine.samplers.base import DrawingSampler, Sampler, SamplerVocabulary
from lockstep.engine.samplers.parts.candidates import CandidateList
from lockstep.engine.samplers.parts.constructors import BY_SAMPLER
from lockstep.engine.samplers.parts.draws import GivenDraws
from lockstep.engine.samplers.parts.ways import DEFINITION, Ways

Stage = Mapping[str, Any]  # such as {"sampler": "top_p", "p": 0.9, "min_keep": 1}


class Chain:
    """Several samplers, each applied to the result of the previous one."""

    def __init__(self, samplers: Sequence[Sampler]) -> None:
        self.samplers = list(samplers)

    def apply(self, c: CandidateList) -> list[CandidateList]:
        """Return the list of candidates after each sampler."""
        found = []
        with np.errstate(all="ignore"):
            for sampler in self.samplers:
                c = sampler.apply(c)
                found.append(c)
        return found

    def draws(self) -> list[float | None]:
        """Return the next draw of each sampler; None if it draws nothing."""
        return [sampler.draw for sampler in self.samplers]

    def give(self, draws: Sequence[float]) -> None:
        """Set the next draw of each sampler."""
        for sampler, draw in zip(self.samplers, draws, strict=True):
            if isinstance(sampler, DrawingSampler):
                sampler.source = GivenDraws(draw)

    def permits(self, token: int) -> bool:
        return all(sampler.permits(token) for sampler in self.samplers)

    def accept(self, token: int) -> None:
        for sampler in self.samplers:
            sampler.accept(token)

    def reset(self) -> None:
        for sampler in self.samplers:
            sampler.reset()

    def clone(self) -> Self:
        return type(self)([sampler.clone() for sampler in self.samplers])


def make_chain(
    stages: Sequence[Stage],
    n_vocab: int,
    vocabulary: SamplerVocabulary | None = None,
    ways: Ways = DEFINITION,
) -> Chain:
    return Chain([make_sampler(stage, n_vocab, vocabulary, ways) for stage in stages])


def make_sampler(
    stage: Stage,
    n_vocab: int,
    vocabulary: SamplerVocabulary | None = None,
    ways: Ways = DEFINITION,
) -> Sampler:
    """Make a sampler from its description. Raises Unsupported for an unknown name or parameter."""
    given = {name: value for name, value in stage.items() if name != "sampler"}
    cls = Sampler.member(stage["sampler"])
    expected = BY_SAMPLER[cls.name].fields
    if given.keys() != expected.keys():
        raise Unsupported(f"{cls.name} has {', '.join(expected)}, not {', '.join(given)}")
    of_model = {"n_vocab": n_vocab, "vocabulary": vocabulary}
    named = {each.name for each in fields(cls)}
    return cls(ways=ways, **given, **{k: v for k, v in of_model.items() if k in named})
