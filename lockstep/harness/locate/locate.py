"""Find the ops that introduce an error, and tell them from those that only pass it on: along
llama.cpp's graph. Putting the oracle's tensors in where they are wrong proves it.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.judging.compare import largest, mismatch_between, worst_distance
from lockstep.harness.judging.findings import Findings, Values
from lockstep.harness.judging.tolerances import Bound, whole_run
from lockstep.harness.locate.nodes import locate_along_nodes
from lockstep.harness.locate.segments import locate_segments, shows_tensors
from lockstep.harness.records import Evaluation, Request, Status

WHOLLY_OFF = 0.5  # of the largest value: ops behind work on other numbers, or on next to nothing
LEVELS = "levels_without_tensors"  # in the detail of what is not answered: what it offers instead
Outputs = tuple[NDArray[Any], ...]  # of each batch: (outputs, vocabulary or width)


def locate(context: Context) -> Findings:
    """Each op alone on the oracle's inputs, if the subject computes single ops as its runs do; or
    what it shows, on its own inputs. Raises NoAnswer where an engine does not show what that takes.
    """
    if context.facts.no_run:
        raise NoAnswer("not-applicable", context.facts.no_run, {})
    if context.subject_info.computes_nodes:
        return locate_along_nodes(context)
    if shows_tensors(context):
        return all_segments(context)
    raise no_tensors(context)


def no_tensors(context: Context) -> NoAnswer:
    text = f"{context.subject.name} does not show tensors"
    return NoAnswer(nothing_shown(context), text, {LEVELS: context.subject_info.levels})


def nothing_shown(context: Context) -> Status:
    """What is said of an engine that lacks what nobody asked for by name."""
    return "not-compared" if context.named else "not-applicable"


def all_segments(context: Context) -> Findings:
    """Also those that a fault before them hides: of a NaN every op makes another one. So the
    oracle's values are put in where an op is wrong, as long as more are found then."""
    found = locate_segments(context)
    hidden = any(not error <= WHOLLY_OFF for error in found.free.values())
    while hidden and (values := replaceable(context, found.values)):
        try:
            more = locate_segments(context, values)
        except NoAnswer:
            break  # what was found is true all the same
        if len(more.values) <= len(found.values):
            break
        found = dataclasses.replace(more, free=found.free)  # of its own run
    return found


def replaceable(context: Context, values: Values) -> Values:
    """Of these values those that the subject can go on with instead of its own."""
    info = context.subject_info
    if info.computes_nodes and not info.shows_nodes:
        return {}  # it has other names for them
    return {s: v for s, v in values.items() if s.name not in info.fixed}


@dataclass(frozen=True, kw_only=True, eq=False)
class Patched:
    """The subject's run with the oracle's tensors put in at the guilty sites only."""

    sites: int
    before: float  # the worst logit of its own run, relative to the largest
    worst: float  # of the patched run
    bound: Bound
    allowed: float  # relative to the largest as well
    differed: bool  # before: if not, agreement afterwards confirms nothing
    agrees: bool
    what: str = "logit"

    @property
    def explains(self) -> bool:
        """Whether nine tenths of a difference are gone: of honest noise most would be left."""
        return self.before > 0 and self.worst <= self.before / 10

    @property
    def confirms(self) -> bool:
        return self.agrees and (self.differed or self.explains)


def outputs_of(
    context: Context, session: Session, found: Findings, values: Values | None = None
) -> Outputs:
    """What its run comes to with these values put in."""
    request = Request(batches=context.batches, embeddings=found.embeddings, replace=values or {})
    run: Evaluation = context.ask(session, "evaluate", request)
    return run.logits


def oracles_outputs(context: Context, found: Findings) -> Outputs:
    if not found.embeddings:
        return outputs_of(context, context.oracle, found)
    outputs: Outputs = context.ask(context.oracle, "embed", context.batches)
    return outputs


def patch(context: Context, found: Findings) -> Patched:
    """If the guilty ops are all there are, putting them right puts the outputs right."""
    replace = replaceable(context, found.values)
    context.progress(f"putting the oracle's tensor in at {len(replace)} sites")
    own, healed = (
        np.concatenate(outputs_of(context, context.subject, found, values))
        for values in (None, replace)
    )
    expected = np.concatenate(oracles_outputs(context, found))
    size = largest(expected)
    bound = whole_run(context.noise.relative, size)
    return Patched(
        sites=len(replace),
        before=worst_distance(expected, own) / (size or 1.0),
        worst=worst_distance(expected, healed) / (size or 1.0),
        bound=bound,
        allowed=float(bound.allowed) / (size or 1.0),
        differed=mismatch_between(expected, own, bound.allowed) is not None,
        agrees=mismatch_between(expected, healed, bound.allowed) is None,
        what=found.what,
    )
