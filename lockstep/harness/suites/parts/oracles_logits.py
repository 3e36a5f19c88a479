"""The oracle's logits, that tokens and texts are held against: if they are right."""

from collections.abc import Sequence

import numpy as np

from lockstep.engine.batch import Batch, joined
from lockstep.engine.quants.base import F32
from lockstep.harness.context.suite import NOT_IN_ONE, Context
from lockstep.harness.judging.tolerances import between_two_in_rows
from lockstep.harness.records import Request
from lockstep.harness.suites.parts.whole_runs import is_oracle_wrong

NOT_DETERMINED = "logits are NaN or infinite, so that greedy tokens are not determined"
ALL_TIE = "every token ties with every other one, so that any choice agrees"
WRONG_ORACLE = "greedy tokens are held against the oracle's logits, and these are wrong"


def oracles_logits(context: Context, batches: Sequence[Batch]) -> F32 | None:
    """Of each output; None if they are wrong."""
    run = context.ask(context.oracle, "evaluate", Request(batches=tuple(batches)))
    logits: F32 = np.concatenate(run.logits)
    wrong = is_oracle_wrong(context, batches, logits, whole_truth(context, batches))
    return None if wrong else logits


def why_any_choice_agrees(context: Context, logits: F32) -> str:
    """Return why no greedy token behind any of these rows can be wrong; "": one can.

    logits: (outputs, vocabulary).
    """
    if not np.isfinite(logits).all():
        return NOT_DETERMINED
    spread = logits.max(axis=1) - logits.min(axis=1)
    ties = spread <= between_two_in_rows(context.noise.relative, logits)
    return ALL_TIE if ties.all() else ""


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
