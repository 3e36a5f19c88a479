"""The interface of an engine with a wrong sampler, and helpers to make one.

The suite `samplers` must name the wrong stage. These engines run no model, so self-tests of graphs
do not include them.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np

from lockstep.engine.samplers.base import Sampler, SamplerVocabulary
from lockstep.engine.samplers.parts.candidates import CandidateList, F
from lockstep.engine.samplers.parts.chain import Chain, make_chain
from lockstep.engine.samplers.parts.ways import Ways
from lockstep.harness.adapters.parts.reference_sample import sample
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.records import SampleAnswer, SampleRequest

Apply = Callable[[Any, CandidateList], CandidateList]
WRONG_SAMPLERS: dict[str, "type[WrongSampler]"] = {}


class WrongSampler(Reference):
    """The reference in which one sampler (`stage`) has another `apply` or `accept`, or in which the
    chain differs."""

    group: ClassVar[str] = "samplers"
    mistake: ClassVar[str]
    stage: ClassVar[str]
    source: ClassVar[str] = ""  # a public thread about the real bug
    wrong: ClassVar[Mapping[str, Callable[..., Any]]] = {}  # by name of the method

    def sample(self, request: SampleRequest) -> SampleAnswer:
        return sample(self.change(request), self.sampler_vocabulary, make=self.make)

    def change(self, request: SampleRequest) -> SampleRequest:
        return request

    def make(self, stages: Any, n_vocab: int, words: SamplerVocabulary | None, ways: Ways) -> Chain:
        chain = make_chain(stages, n_vocab, words, ways)
        for sampler in chain.samplers:
            if sampler.name == self.stage:
                for method, function in self.wrong.items():
                    setattr(sampler, method, partial(function, sampler))
        return chain

    @classmethod
    def add_fault(
        cls, name: str, mistake: str, stage: str, source: str = "", **wrong: Callable[..., Any]
    ) -> type[Self]:
        """Register an engine. `wrong` holds the wrong methods of its sampler."""
        held: dict[str, Any] = {"__module__": module_of_caller(), "mistake": mistake}
        held |= {"stage": stage, "source": source}
        if "change" in wrong:
            held["change"] = wrong.pop("change")
        found = type(name, (cls,), held | {"wrong": wrong}, name=f"mutant:{name}")
        WRONG_SAMPLERS[f"mutant:{name}"] = found
        return found


def module_of_caller() -> str:
    """Return the name of the module that calls `add_fault`, to which the engine belongs."""
    return str(sys._getframe(2).f_globals["__name__"])


def right(sampler: Any, c: CandidateList) -> CandidateList:
    """Apply the sampler's right method."""
    found: CandidateList = type(sampler).apply(sampler, c)
    return found


def changed(**parameters: Any) -> Apply:
    """Return an `apply` in which parameters have other values. A value that is a function gets the
    sampler as argument."""

    def apply(sampler: Any, c: CandidateList) -> CandidateList:
        values = {k: v(sampler) if callable(v) else v for k, v in parameters.items()}
        held = {name: getattr(sampler, name) for name in values}
        try:
            for name, value in values.items():
                object.__setattr__(sampler, name, value)
            return right(sampler, c)
        finally:
            for name, value in held.items():
                object.__setattr__(sampler, name, value)

    return apply


def of_logits(change: Callable[[Any, CandidateList], Any]) -> Apply:
    """Return an `apply` that selects candidates by changed logits, and outputs the original
    logits."""

    def apply(sampler: Any, c: CandidateList) -> CandidateList:
        found = right(sampler, c.change(logits=np.asarray(change(sampler, c), F)))
        places = np.searchsorted(c.ids, found.ids, sorter=np.argsort(c.ids))
        return found.change(logits=c.logits[np.argsort(c.ids)[places]], sorted=False)

    return apply


def p_of(sampler: Sampler, c: CandidateList) -> CandidateList:
    return sampler.ways.softmax(c, sort=True)
