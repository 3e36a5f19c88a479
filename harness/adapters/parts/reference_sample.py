"""Our samplers as answers of an adapter."""

from collections.abc import Callable

import numpy as np

from lockstep.engine.errors import InvalidBatch
from lockstep.engine.samplers.base import SamplerVocabulary
from lockstep.engine.samplers.parts.candidates import CandidateList
from lockstep.engine.samplers.parts.chain import Chain, make_chain
from lockstep.engine.samplers.parts.ways import DEFINITION, Ways
from lockstep.harness.adapters.parts.sampled_lists import SampledList, join_lists
from lockstep.harness.records import SampleAnswer, SampleRequest

MakeChain = Callable[..., Chain]


def sample(
    request: SampleRequest,
    vocabulary: SamplerVocabulary | None,
    ways: Ways = DEFINITION,
    make: MakeChain = make_chain,
) -> SampleAnswer:
    chain = make(request.chain, request.logits.shape[1], vocabulary, ways)
    rows = []
    for logits, accepted, draws in zip(
        request.logits, request.accepted, request.draws, strict=True
    ):
        for token in accepted:
            chain.accept(token)
        chain.give(draws.tolist())
        rows.append([show(each) for each in apply_to(chain, logits)])
    return join_lists(rows)


def apply_to(chain: Chain, logits: np.ndarray) -> list[CandidateList]:
    """Apply a chain to a row of logits. Raises InvalidBatch for a row without candidates."""
    if not len(logits):
        raise InvalidBatch("a row of logits has no candidates")
    return chain.apply(CandidateList.of_logits(logits))


def show(c: CandidateList) -> SampledList:
    return SampledList(c.ids, c.logits, c.p, c.token, c.sorted)
