"""Engines that compute in halves, on models that are made in F32.

Some keep every number in F16 or BF16, as on a GPU. Of a quantised model they are no farther off
than others; of one in F32 that is made of it they are, which is no fault: nobody gave them one.
"""

from math import isfinite

import numpy as np

from lockstep.harness.context.suite import Context
from lockstep.harness.graph.honest_runs import AlongLlamaCpp
from lockstep.harness.judging.compare import largest, worst_distance
from lockstep.harness.judging.stored import looks_like
from lockstep.harness.records import Evaluation, Request

HALVES = "all its logits are numbers of"  # begins what is said of such an engine
NOT_WEIGHTS = "weights: logits in halves do not show them to the last bit"
LIMIT = 2  # times what our own run in halves is off: another engine rounds in other places


def why_off(context: Context, expected: Evaluation, actual: Evaluation) -> str:
    """Of an engine whose logits are all numbers of F16 or BF16, and the oracle's are not, and which
    is off by no more than halves are; "" of others. actual: the engine's."""
    kind, along = looks_like(actual.logits), context.honest
    if not kind or looks_like(expected.logits) or not isinstance(along, AlongLlamaCpp):
        return ""
    rounded = along.kept_in(kind, context.batches)
    limit = LIMIT * worst_distance(np.concatenate(context.noise.logits), rounded)
    off = worst_distance(np.concatenate(expected.logits), np.concatenate(actual.logits))
    if not isfinite(limit) or off > limit:
        return ""
    size = largest(np.concatenate(expected.logits)) or 1.0
    return (
        f"{HALVES} {kind}, and it is {off / size:.1e} of the largest off: an "
        f"engine that computes in {kind} may be by {limit / size:.1e} on this model, which is "
        f"made in F32, so that smaller faults are not seen on it"
    )


def computes_in_halves(context: Context) -> bool:
    """Asks both engines for the usual run. Raises NoAnswer."""
    asked = context.ask_both("evaluate", Request(batches=context.batches))
    return bool(why_off(context, *asked))
