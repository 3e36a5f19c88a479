"""Asks engines for their samplers: which samplers they have, and the list after every stage."""

from collections.abc import Callable
from dataclasses import replace

from lockstep.harness.adapters.parts.sampled_lists import join_lists, split_lists
from lockstep.harness.records import SampleAnswer, SampleRequest

Ask = Callable[[SampleRequest], SampleAnswer]


def ask_every_stage(ask: Ask, request: SampleRequest) -> SampleAnswer:
    """Return an answer with the lists of all stages. An engine that shows only the last list is
    asked for each prefix of the chain, with the same draws and accepted tokens."""
    whole = ask(request)
    if whole.sizes.shape[1] == len(request.chain):
        return whole
    ends = [split_lists(ask(first_stages(request, n))) for n in range(1, len(request.chain))]
    ends.append(split_lists(whole))
    return join_lists([[end[row][0] for end in ends] for row in range(len(request.logits))])


def first_stages(request: SampleRequest, n: int) -> SampleRequest:
    return replace(request, chain=request.chain[:n], draws=request.draws[:, :n])
