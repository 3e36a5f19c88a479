"""Explanations for engines that compute in half precision, tested on F32 models made from the
user's.

Some engines keep every number in F16 or BF16, as on a GPU. On a quantised model they are as
accurate as other engines. On an F32 model made from the quantised model they are less accurate,
which is no fault. Half-precision logits alone prove nothing, because an engine that rounds only its
outputs has them too. So kept_bits.py tests whether the engine distinguishes numbers that are equal
in half precision.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32
from lockstep.harness.context.suite import Context
from lockstep.harness.graph.honest_runs import AlongLlamaCpp
from lockstep.harness.judging.compare import largest, worst_distance
from lockstep.harness.judging.stored import half_step, looks_like
from lockstep.harness.records import Evaluation, Request

COMPUTED_IN = "computed_in"  # key in a verdict's detail: F16 or BF16
NOT_WEIGHTS = "F16 or BF16 values do not show weights to the last bit"
# factor on the error of our own run in halves, because other engines round at other places
LIMIT = 2
Kept = Callable[[], str | None]  # returns "F16", "BF16", "" for neither, None if unknown


@dataclass(frozen=True, kw_only=True)
class InHalves:
    """An explanation of errors on a model made in F32. why: a sentence for the verdict."""

    kind: str  # F16 or BF16
    why: str


def explain_by_halves(
    context: Context,
    expected: Evaluation,
    actual: Evaluation,
    allowed: float,
    kept: Kept,
    *,
    outputs: str = "logits",
) -> InHalves | None:
    """Explain the errors by 16-bit numbers, in which the engine computes or to which it rounds its
    outputs. Return None if 16-bit numbers do not explain the errors.

    actual: the subject's outputs; allowed: the limit for an engine that does neither; kept: a
    function that returns the 16-bit type that the engine computes in; outputs: the name of the
    outputs in sentences.
    """
    along = context.honest
    if not isinstance(along, AlongLlamaCpp):
        return None
    runs = np.concatenate(expected.logits), np.concatenate(actual.logits)
    shown = "" if looks_like(expected.logits) else looks_like(actual.logits)
    proven = kept()
    if proven == "":
        return explain_by_rounding(*runs, shown, allowed, outputs) if shown else None
    kind = proven or shown
    if not kind:
        return None
    rounded = along.kept_in(kind, context.batches)
    limit = LIMIT * worst_distance(np.concatenate(context.noise.logits), rounded)
    off, size = worst_distance(*runs), largest(runs[0]) or 1.0
    if not isfinite(limit) or off > limit:
        return None
    how = f"all {outputs} are {kind} numbers"
    if shown != kind:
        how = f"the engine does not distinguish numbers that are equal in {kind}"
    why = (
        f"{how}, and the largest error is {off / size:.1e} of the largest value; an engine "
        f"that computes in {kind} may be off by {limit / size:.1e} on this F32 model, so "
        "smaller faults do not show"
    )
    return InHalves(kind=kind, why=why)


def explain_by_rounding(
    expected: F32, actual: F32, kind: str, allowed: float, outputs: str
) -> InHalves | None:
    """Explain the errors by rounded outputs. Each output may then be off by half a rounding step
    more than the limit. Return None if rounding does not explain the errors."""
    limit: NDArray[np.float64] = allowed + half_step(actual, kind)
    if not np.all(np.abs(expected.astype(np.float64) - actual) <= limit):
        return None
    why = (
        f"all {outputs} are {kind} numbers, and rounding to {kind} explains every error; "
        "smaller faults do not show"
    )
    return InHalves(kind=kind, why=why)


def explain_embeddings(context: Context) -> InHalves | None:
    """Explain the errors of an engine that shows only embeddings, or return None. The engine's
    precision is not tested. Raises NoAnswer."""
    with closing(context.for_embeddings()) as own:
        rows = own.ask_both("embed", own.batches)
        first, second = (Evaluation(logits=each, trace=None) for each in rows)
        return explain_by_halves(own, first, second, 0.0, lambda: None, outputs="embeddings")


def computes_in_halves(context: Context, kept: Kept) -> bool:
    """Ask both engines for the usual run, and return True if 16-bit numbers explain the errors.
    Raises NoAnswer."""
    asked = context.ask_both("evaluate", Request(batches=context.batches))
    allowed = context.noise.relative * largest(np.concatenate(asked[0].logits))
    return explain_by_halves(context, *asked, allowed, kept) is not None
