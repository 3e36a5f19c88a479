"""Engines asked for their samplers: which they have, and every stage of those that show the end."""

from collections.abc import Callable
from dataclasses import replace

from lockstep.harness.adapters.parts.sampled_lists import join_lists, split_lists
from lockstep.harness.records import SampleAnswer, SampleRequest

Ask = Callable[[SampleRequest], SampleAnswer]


def ask_every_stage(ask: Ask, request: SampleRequest) -> SampleAnswer:
    """Return an answer with all stages. An engine that shows the end alone is asked for the end of
    each beginning of the chain; it draws and is told the same."""
    whole = ask(request)
    if whole.sizes.shape[1] == len(request.chain):
        return whole
    ends = [split_lists(ask(first_stages(request, n))) for n in range(1, len(request.chain))]
    ends.append(split_lists(whole))
    return join_lists([[end[row][0] for end in ends] for row in range(len(request.logits))])


def first_stages(request: SampleRequest, n: int) -> SampleRequest:
    return replace(request, chain=request.chain[:n], draws=request.draws[:, :n])
