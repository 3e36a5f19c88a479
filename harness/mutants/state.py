"""Mistakes in data that an engine wrongly keeps between calls. Every op is right."""

from dataclasses import replace
from itertools import pairwise

from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.parts.mistakes import Mistake
from lockstep.harness.records import Evaluation, Request


class BetweenCalls(Mistake):
    group = "state"
    site = "logits"
    layer = None


class StaleLogits(BetweenCalls, name="mutant:state-stale-logits"):
    mistake = "the logits of the last batch are those of the previous batch"
    effect = "every token is generated one step late, or twice"

    def evaluate(self, request: Request) -> Evaluation:
        found = super().evaluate(request)
        rows = [before[-len(own) :] for before, own in pairwise(found.logits)]
        return replace(found, logits=(found.logits[0], *rows))


class LogitsOfLastCall(BetweenCalls, name="mutant:state-logits-of-last-call"):
    mistake = "a call of the same size returns old logits from the buffer"
    effect = "the second prompt gets the answer of the first"
    kept: tuple[F32, ...] = ()

    def evaluate(self, request: Request) -> Evaluation:
        found = super().evaluate(request)
        same = [rows.shape for rows in self.kept] == [rows.shape for rows in found.logits]
        self.kept, given = found.logits, self.kept if same else found.logits
        return replace(found, logits=given)


class LogitsShared(BetweenCalls, name="mutant:state-logits-share-a-buffer"):
    mistake = "the logits of all batches of one size lie in one buffer, and the last one wins"
    effect = "a program that reads logits later gets those of a later token"

    def evaluate(self, request: Request) -> Evaluation:
        found = super().evaluate(request)
        last = {rows.shape: rows for rows in found.logits}
        return replace(found, logits=tuple(last[rows.shape] for rows in found.logits))
