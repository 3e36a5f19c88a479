"""Grammars in other correct implementations: another parser, and other ways to forbid
candidates."""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from lockstep.engine.samplers.base import SamplerVocabulary
from lockstep.engine.samplers.grammar import Grammar
from lockstep.engine.samplers.parts.candidates import CandidateList
from lockstep.engine.samplers.parts.chain import Chain
from lockstep.engine.samplers.parts.ways import Ways
from lockstep.harness.honest.parts.derivatives import (
    allowed_by_derivatives,
    begin_by_derivatives,
    read_by_derivatives,
)
from lockstep.harness.honest.samplers import HonestSampler

HONEST_GRAMMARS: dict[str, "type[HonestGrammar]"] = {}


class HonestGrammar(HonestSampler):
    """Our samplers with another way to match their grammars."""

    ways = Ways()
    other: ClassVar[Mapping[str, Callable[..., Any]]]

    def make(self, stages: Any, n_vocab: int, words: SamplerVocabulary | None, ways: Ways) -> Chain:
        chain = super().make(stages, n_vocab, words, ways)
        for sampler in chain.samplers:
            for method, function in self.other.items() if isinstance(sampler, Grammar) else ():
                setattr(sampler, method, partial(function, sampler))
        return chain

    @classmethod
    def add_grammar(cls, name: str, design: str, **other: Callable[..., Any]) -> None:
        held = {"__module__": cls.__module__, "design": design, "other": other}
        HONEST_GRAMMARS[f"honest:{name}"] = type(name, (cls,), held, name=f"honest:{name}")


def leave_out(sampler: Any, c: CandidateList) -> CandidateList:
    """Remove forbidden candidates, but keep all if every candidate is forbidden, because no later
    sampler could handle an empty list."""
    found: CandidateList = type(sampler).apply(sampler, c)
    kept = np.flatnonzero(found.logits > -np.inf)
    return found if sampler.is_open or not len(kept) else found.take(kept)


def without_controls(sampler: Any) -> Any:
    allowed = type(sampler).find_allowed(sampler)
    right = copy.copy(sampler)
    vars(right).pop("find_allowed")
    return allowed & ~right.find_spelled()


add = HonestGrammar.add_grammar

add("grammar-leaves-out", "forbidden candidates are removed from the list", apply=leave_out)
add(
    "grammar-without-controls",
    "control tokens are not text, and only literals allow them",
    find_allowed=without_controls,
)
add(
    "grammar-by-derivatives",
    "each token is read alone, by derivatives of the rules",
    find_allowed=allowed_by_derivatives,
    read=read_by_derivatives,
    begin=begin_by_derivatives,
)
