"""Mistakes in pooling the rows of an encoder: which rows, and which sequence."""

from typing import Any

import numpy as np

from lockstep.engine.architectures.step import Step
from lockstep.engine.model import Model
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.parts.replaced_methods import put
from lockstep.harness.mutants.parts.mistakes import Mistake, Op

POOR = "embeddings of sentences are poor; searches miss"


class WrongPooling(Mistake):
    group = "embeddings"
    effect = POOR
    shows_on = "bert-mean"
    site = "result_embd_pooled"
    layer = None

    def change(self, model: Model) -> None:
        put(model.graph, "pool_rows", self.pool_rows)

    def pool_rows(self, right: Op, step: Step, x: F32) -> F32:
        """Pool the rows of each sequence in the order of their positions."""
        x, batch = step.probe("result_embd", None, x), step.batch
        rows = []
        for seq in np.unique(batch.seq_ids):
            own = np.flatnonzero(batch.seq_ids == seq)
            rows.append(self.row(step.ops, x[own[batch.positions[own].argsort()]], x))
        return np.stack(rows)

    def row(self, ops: Any, own: F32, every: F32) -> F32:
        raise NotImplementedError


class FirstForMean(WrongPooling, name="mutant:pooling-first-for-mean"):
    mistake = "the first token's row is returned although the file asks for the mean"

    def row(self, ops: Any, own: F32, every: F32) -> F32:
        first: F32 = own[0]
        return first


WrongPooling.add_fault(
    "pooling-last-for-mean",
    "the last token's row is returned although the file asks for the mean",
    row=lambda self, ops, own, every: own[-1],
)
WrongPooling.add_fault(
    "pooling-mean-of-batch",
    "the mean is taken over all tokens of a batch, whatever their sequence",
    "embeddings depend on what else is embedded at once",
    row=lambda self, ops, own, every: ops.mean(every),
)


class SumForMean(WrongPooling, name="mutant:pooling-sum-for-mean"):
    mistake = "rows are added up, and the sum is not divided"
    effect = "embeddings of long texts are near no other embedding"

    def row(self, ops: Any, own: F32, every: F32) -> F32:
        mean: F32 = ops.mean(own)
        return mean * np.float32(len(own))


WrongPooling.add_fault(
    "pooling-mean-for-first",
    "the mean of all rows is returned although the file asks for the first row",
    shows_on="bert-cls",
    row=lambda self, ops, own, every: ops.mean(own),
)
