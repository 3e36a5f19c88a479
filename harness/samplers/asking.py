"""Asks engines which samplers they have, and for the list of candidates after every stage."""

from collections.abc import Callable
from dataclasses import replace

from lockstep.harness.adapters.parts.sampled_lists import join_lists, split_lists
from lockstep.harness.records import SampleAnswer, SampleRequest

Ask = Callable[[SampleRequest], SampleAnswer]


def ask_every_stage(ask: Ask, request: SampleRequest) -> SampleAnswer:
    """Return an answer with the lists of all stages. If an engine shows only the last list, ask it
    for each prefix of the chain, with the same draws and accepted tokens."""
    whole = ask(request)
    if whole.sizes.shape[1] == len(request.chain):
        return whole
    ends = [split_lists(ask(first_stages(request, n))) for n in range(1, len(request.chain))]
    ends.append(split_lists(whole))
    return join_lists([[end[row][0] for end in ends] for row in range(len(request.logits))])


def first_stages(request: SampleRequest, n: int) -> SampleRequest:
    return replace(request, chain=request.chain[:n], draws=request.draws[:, :n])
