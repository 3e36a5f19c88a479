"""Engines that compute in halves, on models that are made in F32.

Some keep every number in F16 or BF16, as on a GPU. Of a quantised model they are no farther off
than others; of one in F32 that is made of it they are, which is no fault: nobody gave them one.
That their logits are such numbers does not show it: whoever rounds them at the end has these too.
So they are asked (kept_bits.py) whether they tell numbers apart that halves do not.
"""

from collections.abc import Callable
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32
from lockstep.harness.context.suite import Context
from lockstep.harness.graph.honest_runs import AlongLlamaCpp
from lockstep.harness.judging.compare import largest, worst_distance
from lockstep.harness.judging.stored import half_step, looks_like
from lockstep.harness.records import Evaluation, Request

HALVES = "so that smaller faults are not seen on it"  # ends what is said of such an engine
NOT_WEIGHTS = "halves do not show weights to the last bit"
LIMIT = 2  # times what our own run in halves is off: another engine rounds in other places
Kept = Callable[[], str | None]  # "F16", "BF16", "": neither, None: it cannot be told


def why_off(
    context: Context, expected: Evaluation, actual: Evaluation, allowed: float, kept: Kept
) -> str:
    """Of an engine that computes in halves, as far as can be told, and is off by no more than they
    are; or that rounds its logits to such alone, and is off by no more than that; "" of others.
    actual: the engine's; allowed: of one that does neither."""
    along = context.honest
    if not isinstance(along, AlongLlamaCpp):
        return ""
    runs = np.concatenate(expected.logits), np.concatenate(actual.logits)
    shown = "" if looks_like(expected.logits) else looks_like(actual.logits)
    proven = kept()
    if proven == "":
        return why_rounded(*runs, shown, allowed) if shown else ""
    kind = proven or shown
    if not kind:
        return ""
    rounded = along.kept_in(kind, context.batches)
    limit = LIMIT * worst_distance(np.concatenate(context.noise.logits), rounded)
    off, size = worst_distance(*runs), largest(runs[0]) or 1.0
    if not isfinite(limit) or off > limit:
        return ""
    how = f"all its logits are numbers of {kind}"
    if shown != kind:
        how = f"the engine tells no numbers apart that are the same in {kind}"
    return (
        f"{how}, and it is {off / size:.1e} of the largest off: an engine that computes in {kind} "
        f"may be by {limit / size:.1e} on this model, which is made in F32, {HALVES}"
    )


def why_rounded(expected: F32, actual: F32, kind: str, allowed: float) -> str:
    limit: NDArray[np.float64] = allowed + half_step(actual, kind)
    if not np.all(np.abs(expected.astype(np.float64) - actual) <= limit):
        return ""
    return (
        f"all its logits are numbers of {kind}, and none is off by more than rounding them to such "
        f"makes, {HALVES}"
    )


def why_embeddings_off(context: Context) -> str:
    """The same of an engine that is asked for these alone: what it tells apart is not asked. Raises
    NoAnswer."""
    own = context.for_embeddings()
    try:
        rows = own.ask_both("embed", own.batches)
        first, second = (Evaluation(logits=each, trace=None) for each in rows)
        why = why_off(own, first, second, allowed=0.0, kept=lambda: None)
        return why.replace("logits", "embeddings")
    finally:
        own.close()


def computes_in_halves(context: Context, kept: Kept) -> bool:
    """Asks both engines for the usual run. Raises NoAnswer."""
    asked = context.ask_both("evaluate", Request(batches=context.batches))
    allowed = context.noise.relative * largest(np.concatenate(asked[0].logits))
    return bool(why_off(context, *asked, allowed, kept))
