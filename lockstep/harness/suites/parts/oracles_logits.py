"""The oracle's logits, that tokens and texts are held against: if they are right."""

from collections.abc import Sequence

import numpy as np

from lockstep.engine.batch import Batch, joined
from lockstep.engine.quants.base import F32
from lockstep.harness.context.suite import NOT_IN_ONE, Context
from lockstep.harness.records import Request
from lockstep.harness.suites.logits import is_oracle_wrong

WRONG_ORACLE = "greedy tokens are held against the oracle's logits, and these are wrong"


def oracles_logits(context: Context, batches: Sequence[Batch]) -> F32 | None:
    """Of each output; None if they are wrong."""
    run = context.ask(context.oracle, "evaluate", Request(batches=tuple(batches)))
    logits: F32 = np.concatenate(run.logits)
    wrong = is_oracle_wrong(context, batches, logits, whole_truth(context, batches))
    return None if wrong else logits


def whole_truth(context: Context, batches: Sequence[Batch]) -> F32:
    """Logits of an honest run of our own."""
    floor = context.honest.floor(in_one(context, batches), seed=context.seed, runs=0)
    return np.concatenate(floor.logits)


def in_one(context: Context, batches: Sequence[Batch]) -> tuple[Batch, ...]:
    """All that is decoded in one batch, with the same outputs: weights are decoded once."""
    if context.facts.architecture in NOT_IN_ONE:
        return tuple(batches)
    encoded = [batch for batch in batches if batch.encoder]
    return (*encoded, joined([batch for batch in batches if not batch.encoder]))
