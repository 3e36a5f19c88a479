"""State between calls, races and the greedy loop: every op is right, or right most of the time."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.random import Philox

from engine.batch import Batch
from engine.ops.reference import I32
from engine.quants.base import F32
from engine.weights import Weight
from harness.mutants._parts import Op, Part
from harness.records import Evaluation, Request


class BetweenCalls(Part):
    group = "state"
    site = "logits"
    layer = None


class StaleLogits(BetweenCalls, name="mutant:state-stale-logits"):
    mistake = "the logits of the last batch are those of the one before"
    effect = "every token is generated one step late, or twice"

    def evaluate(self, request: Request) -> Evaluation:
        found = super().evaluate(request)
        rows = [before[-len(own) :] for before, own in pairwise(found.logits)]
        return replace(found, logits=(found.logits[0], *rows))


class LogitsOfLastCall(BetweenCalls, name="mutant:state-logits-of-last-call"):
    mistake = "a call of the same size gives the logits that lie in the buffer"
    effect = "the second prompt gets the answer of the first"
    kept: tuple[F32, ...] = ()

    def evaluate(self, request: Request) -> Evaluation:
        found = super().evaluate(request)
        same = [rows.shape for rows in self.kept] == [rows.shape for rows in found.logits]
        self.kept, given = found.logits, self.kept if same else found.logits
        return replace(found, logits=given)


class LogitsShared(BetweenCalls, name="mutant:state-logits-share-a-buffer"):
    mistake = "the logits of all batches of one size lie in one buffer, and the last one wins"
    effect = "whoever keeps logits finds those of a later token in them"

    def evaluate(self, request: Request) -> Evaluation:
        found = super().evaluate(request)
        last = {rows.shape: rows for rows in found.logits}
        return replace(found, logits=tuple(last[rows.shape] for rows in found.logits))


# --- races --------------------------------------------------------------------------------------


class Race(Part):
    """What goes wrong depends on how many calls there were: no run is like the one before."""

    group = "races"
    effect = "the same prompt gives another text each time"
    calls = 0

    def lost(self, share: float) -> bool:
        self.calls += 1
        return bool(Philox(key=self.calls).random_raw() < share * 2.0**64)


class HeadLost(Race, name="mutant:race-head-lost"):
    mistake = "now and then a head is added up before it is there"
    site = "kqv_out"

    def kqv(self, right: Op, p: F32, v: Any) -> F32:
        out = right(p, v)
        if self.lost(0.3):
            out[:, : v.shape[-1]] = 0
        return out


class RowTorn(Race, name="mutant:race-row-torn"):
    mistake = "now and then the last row of a product is not written yet when it is read"
    site = "Qcur"

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        out = right(x, weight)
        if self.lost(0.1):
            out[-1] = 0
        return out


class Uninitialised(Race, name="mutant:race-uninitialised-embedding"):
    mistake = "a row of the embeddings is never written, and holds what lay there"
    source = "sglang #38363"
    site = "embd"
    layer = None

    def get_rows(self, right: Op, weight: Weight, ids: I32) -> F32:
        out = right(weight, ids)
        self.calls += 1
        out[0] = np.asarray(Philox(key=self.calls).random_raw(out.shape[-1])) * 2.0**-64
        return out


class SumsInAnyOrder(Race, name="mutant:race-sum-of-parts"):
    mistake = "two threads add into one number, and now and then a part is lost"
    site = "ffn_out"

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        out = right(x, weight)
        if "ffn_down" in weight.name and self.lost(0.5):
            half = x.copy()
            half[:, x.shape[1] // 2 :] = 0
            out[:, 0] = right(half, weight)[:, 0]
        return out


# --- the greedy loop ----------------------------------------------------------------------------


class Loop(Part):
    """`choose` is what is made of the logits; no op is wrong."""

    group = "greedy"
    effect = "text differs from the first token on, and the logits are right"
    site = "decode"
    layer = None

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        memory, ids = self.loaded.new_memory(), list(prompt)
        logits = self.loaded.decode(self.first(ids), memory)
        while True:
            ids.append(self.choose(logits, ids))
            if len(ids) == len(prompt) + n:
                return ids[len(prompt) :]
            fed = self.fed(ids)
            logits = self.loaded.decode(Batch.of([fed], start=len(ids) - 1), memory)

    def first(self, prompt: Sequence[int]) -> Batch:
        return Batch.of(prompt)

    def fed(self, ids: Sequence[int]) -> int:
        return ids[-1]

    def choose(self, logits: F32, ids: Sequence[int]) -> int:
        return int(np.argmax(logits[-1]))


class LastOfPromptLost(Loop, name="mutant:greedy-last-of-prompt-lost"):
    mistake = "the last token of the prompt is fed as the first one again"

    def first(self, prompt: Sequence[int]) -> Batch:
        return Batch.of([*prompt[:-1], prompt[0]])


class RowBefore(Loop, name="mutant:greedy-row-before"):
    mistake = "the first token is chosen by the logits of the last but one"

    def choose(self, logits: F32, ids: Sequence[int]) -> int:
        return int(np.argmax(logits[-2 if len(logits) > 1 else -1]))


class FeedsOneLate(Loop, name="mutant:greedy-feeds-one-late"):
    mistake = "the token before the one that was just chosen is fed"
    effect = "text differs from the second token on, and the logits are right"

    def fed(self, ids: Sequence[int]) -> int:
        return ids[-2]


class Penalised(Loop, name="mutant:greedy-penalised"):
    mistake = "a repetition penalty of 1.1 is left on"
    effect = "greedy text avoids words that were there"

    def choose(self, logits: F32, ids: Sequence[int]) -> int:
        row, seen = logits[-1].copy(), np.unique(ids)
        row[seen] = np.where(row[seen] > 0, row[seen] / 1.1, row[seen] * 1.1)
        return int(np.argmax(row))


class Sampled(Loop, name="mutant:greedy-sampled"):
    mistake = "a temperature of 0 is taken for 1, and tokens are drawn"

    def choose(self, logits: F32, ids: Sequence[int]) -> int:
        row = logits[-1].astype(np.float64)
        shares = np.cumsum(np.exp(row - row.max()))
        at = Philox(key=len(ids)).random_raw() * 2.0**-64
        return int(np.searchsorted(shares, at * shares[-1]))


class FirstHalf(Loop, name="mutant:greedy-half-the-vocabulary"):
    mistake = "the largest logit is looked for in the first half of the vocabulary"

    def choose(self, logits: F32, ids: Sequence[int]) -> int:
        return int(np.argmax(logits[-1][: logits.shape[1] // 2]))


class LastOfTies(Loop, name="mutant:greedy-last-of-ties"):
    """llama.cpp takes the first; where logits are never equal nobody sees it."""

    mistake = "of equal logits the last one is chosen"
    effect = "another text wherever two logits are the same"

    def choose(self, logits: F32, ids: Sequence[int]) -> int:
        return int(logits.shape[1] - 1 - np.argmax(logits[-1][::-1]))
