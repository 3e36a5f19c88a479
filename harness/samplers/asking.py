"""Engines asked for their samplers: which they have, and every stage of those that show the end."""

from collections.abc import Callable
from dataclasses import replace

from lockstep.harness.adapters.parts.sampled_lists import join_lists, split_lists
from lockstep.harness.records import SampleAnswer, SampleRequest

Ask = Callable[[SampleRequest], SampleAnswer]


def ask_every_stage(ask: Ask, request: SampleRequest) -> SampleAnswer:
    """Return an answer with all stages. An engine that shows only the last list is asked for each
    prefix of the chain; it draws and accepts the same tokens."""
    whole = ask(request)
    if whole.sizes.shape[1] == len(request.chain):
        return whole
    ends = [split_lists(ask(first_stages(request, n))) for n in range(1, len(request.chain))]
    ends.append(split_lists(whole))
    return join_lists([[end[row][0] for end in ends] for row in range(len(request.logits))])


def first_stages(request: SampleRequest, n: int) -> SampleRequest:
    return replace(request, chain=request.chain[:n], draws=request.draws[:, :n])
