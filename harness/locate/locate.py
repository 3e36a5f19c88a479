"""Finds the ops that introduce an error, as opposed to ops that pass it on, along llama.cpp's
graph.

A run in which the oracle's tensors replace the wrong ones proves the result (proof.py).
"""

import dataclasses
from typing import Any

from numpy.typing import NDArray

from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.dumps.node_maps import fits_none
from lockstep.harness.judging.findings import Findings, Values
from lockstep.harness.locate.nodes import locate_along_nodes
from lockstep.harness.locate.segments import locate_segments, shows_tensors
from lockstep.harness.records import Evaluation, Request, Status

WHOLLY_OFF = 0.5  # share of the largest value; beyond it, later ops work with unrelated values
# key in `detail` of a missing answer: the levels that the engine offers instead
LEVELS = "levels_without_tensors"
Outputs = tuple[NDArray[Any], ...]  # by batch: (outputs, vocabulary or width)


def locate(context: Context) -> Findings:
    """Find the wrong ops. Each op is computed on the oracle's inputs, or the tensors that the
    subject shows are judged on its own inputs.

    The first way needs a subject that computes single ops as its runs do. Raises NoAnswer if the
    subject shows too little for both ways.
    """
    if context.facts.no_run:
        raise NoAnswer("not-applicable", context.facts.no_run, {})
    if context.subject_info.computes_nodes:
        found = locate_along_nodes(context)
    elif shows_tensors(context):
        found = all_segments(context)
    else:
        raise no_tensors(context)
    return dataclasses.replace(found, batches=tuple(context.batches))


def no_tensors(context: Context) -> NoAnswer:
    text = f"{context.subject.name} does not show tensors"
    if names := context.subject_info.unmapped:
        text += f": {fits_none(names)}"
    return NoAnswer(nothing_shown(context), text, {LEVELS: context.subject_info.levels})


def nothing_shown(context: Context) -> Status:
    """Return the status for an engine that lacks a level. The status depends on whether the user
    named the suite."""
    return "not-compared" if context.named else "not-applicable"


def all_segments(context: Context) -> Findings:
    """Find all wrong segments, including those that an earlier fault hides, such as a NaN. The
    oracle's values replace the wrong results, and the search repeats while it finds more
    segments."""
    found = locate_segments(context)
    hidden = any(not error <= WHOLLY_OFF for error in found.free.values())
    while hidden and (values := replaceable(context, found.values)):
        try:
            more = locate_segments(context, values)
        except NoAnswer:
            break  # the findings so far are valid
        if len(more.values) <= len(found.values):
            break
        found = dataclasses.replace(more, free=found.free)  # `free` is about the engine's own run
    return found


def replaceable(context: Context, values: Values) -> Values:
    """Return those values that the subject can use instead of its own."""
    info = context.subject_info
    if info.computes_nodes and not info.shows_nodes:
        return {}  # the engine's names of nodes differ
    return {s: v for s, v in values.items() if s.name not in info.fixed}


def outputs_of(
    context: Context, session: Session, found: Findings, values: Values | None = None
) -> Outputs:
    """Return the outputs of the subject's run in which these values replace the subject's own."""
    request = Request(batches=context.batches, embeddings=found.embeddings, replace=values or {})
    run: Evaluation = context.ask(session, "evaluate", request)
    return run.logits


def oracles_outputs(context: Context, found: Findings) -> Outputs:
    if not found.embeddings:
        return outputs_of(context, context.oracle, found)
    outputs: Outputs = context.ask(context.oracle, "embed", context.batches)
    return outputs
