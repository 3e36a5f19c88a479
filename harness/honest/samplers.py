"""Samplers in other correct implementations, with other orders, sums, functions or forms of
lists."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.samplers.base import Sampler, SamplerVocabulary
from lockstep.engine.samplers.infill import Infill
from lockstep.engine.samplers.parts.candidates import CandidateList, F
from lockstep.engine.samplers.parts.chain import Chain, make_chain
from lockstep.engine.samplers.parts.libstdcxx import Places
from lockstep.engine.samplers.parts.ways import LLAMA_CPP, EqualsOrder, SumPrecision, Ways
from lockstep.engine.samplers.top_k import TopK
from lockstep.harness.adapters.parts.reference_sample import sample
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.records import SampleAnswer, SampleRequest

HONEST_SAMPLERS: dict[str, "type[HonestSampler]"] = {}
Show = Callable[[Sampler, CandidateList], CandidateList]


class HonestSampler(Reference):
    """The reference engine with other ways to compute samplers, or to output the list after each
    stage."""

    group: ClassVar[str] = "honest samplers"
    design: ClassVar[str]
    ways: ClassVar[Ways]
    shows: ClassVar[tuple[Show, ...]] = ()

    def sample(self, request: SampleRequest) -> SampleAnswer:
        return sample(request, self.sampler_vocabulary, self.ways, self.make)

    def make(self, stages: Any, n_vocab: int, words: SamplerVocabulary | None, ways: Ways) -> Chain:
        chain = make_chain(stages, n_vocab, words, ways)
        return ShownChain(chain, self.shows[0]) if self.shows else chain

    @classmethod
    def add_design(
        cls, name: str, design: str, ways: Ways | None = None, show: Show | None = None
    ) -> type[Self]:
        """Register an engine. `ways` changes its computations, and `show` changes its list after
        each stage."""
        held = {"__module__": cls.__module__, "design": design, "ways": ways or Ways()}
        held["shows"] = () if show is None else (show,)
        found = type(name, (cls,), held, name=f"honest:{name}")
        HONEST_SAMPLERS[f"honest:{name}"] = found
        return found


class ShownChain(Chain):
    """A chain whose lists are changed after each stage, before the next one."""

    def __init__(self, chain: Chain, show: Show) -> None:
        super().__init__(chain.samplers)
        self.show = show

    def apply(self, c: CandidateList) -> list[CandidateList]:
        found = []
        with np.errstate(all="ignore"):
            for sampler in self.samplers:
                after = sampler.apply(c)
                c = self.show(sampler, after) if after.selected < 0 else after
                found.append(c)
        return found


@dataclass(frozen=True, kw_only=True)
class LastFirst(Ways):
    """Sorts equal logits so that the last comes first."""

    def descending(self, logits: NDArray[np.float32], k: int) -> Places:
        return np.argsort(logits, kind="stable")[::-1][:k]


@dataclass(frozen=True, kw_only=True)
class LogSpace(Ways):
    """Computes probabilities as the exponential of rounded logarithms."""

    def softmax(self, c: CandidateList, *, sort: bool) -> CandidateList:
        c = self.sort(c) if sort else c
        far = c.logits - self.largest(c)
        return c.change(p=self.exp(far - self.log_of(self.total(self.exp(far)))))


@dataclass(frozen=True, kw_only=True)
class Pairwise(Ways):
    """Sums in float32 with numpy, which adds in pairs."""

    def total(self, terms: NDArray[Any]) -> np.float32:
        return F(terms.sum(dtype=np.float32)) if len(terms) else F(0)


def by_id(sampler: Sampler, c: CandidateList) -> CandidateList:
    return c.take(np.argsort(c.ids, kind="stable"), sorted=False)


def by_logit(sampler: Sampler, c: CandidateList) -> CandidateList:
    return c.take(np.argsort(-c.logits, kind="stable"), sorted=True)


def share_out(sampler: Sampler, c: CandidateList) -> CandidateList:
    """Normalise the probabilities of the candidates after every stage except infill, which uses the
    probabilities before it."""
    if isinstance(sampler, Infill):
        return c
    weights = np.exp(c.logits.astype(np.float64) - c.logits.max())
    return c.change(p=np.asarray(weights / weights.sum(), F))


def show_no_p(sampler: Sampler, c: CandidateList) -> CandidateList:
    return c.change(p=np.full(len(c), np.nan, F))


FLOAT = Ways(sums=SumPrecision.IN_TURN, functions=LLAMA_CPP.functions)
LIBRARY = Ways(order=EqualsOrder.LIBSTDCXX, functions=LLAMA_CPP.functions)
add = HonestSampler.add_design

add("last-of-equals", "the last id comes first among equal logits", LastFirst())
add("floats-in-turn", "float32 sums, one after the other, and libm's functions", FLOAT)
add("libstdcxx", "the order of libstdc++'s sorts", LIBRARY)
add("log-space", "probabilities by logarithms", LogSpace())
add("pairwise-sums", "float32 sums by pairs", Pairwise())
add("list-by-id", "lists in the order of ids after every stage", show=by_id)
add("list-by-logit", "lists are sorted after every stage", show=by_logit)
add("p-of-the-rest", "probabilities of the candidates that are left", show=share_out)
add("p-not-shown", "probabilities only where a token is chosen", show=show_no_p)


class TiesKept(HonestSampler, name="honest:ties-kept"):
    """Top-k that keeps every candidate whose logit is at least the k-th largest, as in
    transformers."""

    design = "top_k keeps all candidates that are equal to the last"
    ways = Ways()

    def make(self, stages: Any, n_vocab: int, words: SamplerVocabulary | None, ways: Ways) -> Chain:
        chain = super().make(stages, n_vocab, words, ways)
        for i, sampler in enumerate(chain.samplers):
            if isinstance(sampler, TopK):
                chain.samplers[i] = TiedTopK(k=sampler.k)
        return chain


class TiedTopK(TopK):
    def apply(self, c: CandidateList) -> CandidateList:
        found = super().apply(c)
        if len(found) == len(c):
            return found
        return c.take(np.flatnonzero(~(c.logits < found.logits.min())))


HONEST_SAMPLERS[TiesKept.name] = TiesKept
