"""Race conditions: every op is right most of the time."""

import numpy as np
from numpy.random import Philox

from lockstep.engine.ops.reference import I32
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.mutants.parts.mistakes import Mistake, Op


class Race(Mistake):
    """A race condition that depends on the number of calls, so that no two runs are equal."""

    group = "races"
    effect = "the same prompt gives another text each time"
    calls = 0

    def lost(self, share: float) -> bool:
        self.calls += 1
        return bool(Philox(key=self.calls).random_raw() < share * 2.0**64)


class HeadLost(Race, name="mutant:race-head-lost"):
    mistake = "now and then the first head is read before it is written"
    site = "attn_out"

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        if weight.name == "blk.0.attn_output.weight" and self.lost(0.3):
            x = x.copy()
            x[:, : self.loaded.graph.hparams.n_embd_head] = 0
        return right(x, weight)


class RowTorn(Race, name="mutant:race-row-torn"):
    mistake = "now and then the last row of a product is read before it is written"
    site = "Qcur"

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        out = right(x, weight)
        if weight.name == "blk.0.attn_q.weight" and self.lost(0.5):
            out[-1] = 0
        return out


class Uninitialised(Race, name="mutant:race-uninitialised-embedding"):
    mistake = "a row of the embeddings is never written, and holds old data"
    source = "sglang #38363"
    site = "embd"
    layer = None

    def get_rows(self, right: Op, weight: Weight, ids: I32) -> F32:
        out = right(weight, ids)
        self.calls += 1
        out[0] = np.asarray(Philox(key=self.calls).random_raw(out.shape[-1])) * 2.0**-64
        return out


class SumOfParts(Race, name="mutant:race-sum-of-parts"):
    mistake = "two threads add into one number, and now and then a part is lost"
    site = "ffn_out"

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        out = right(x, weight)
        if weight.name == "blk.0.ffn_down.weight" and self.lost(0.5):
            half = x.copy()
            half[:, x.shape[1] // 2 :] = 0
            out[:, 0] = right(half, weight)[:, 0]
        return out


class SelfLost(Race, name="mutant:race-cache-written-late"):
    mistake = "now and then keys are read before the newest key is in the cache"
    site = "kq"

    def kq(self, right: Op, q: F32, k: F32) -> F32:
        if len(q) == 1 and self.lost(0.5):
            k = k.copy()
            k[-1] = 0
        return right(q, k)
