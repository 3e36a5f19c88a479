"""Finds wrong ops along the oracle's own graph, for any architecture.

The subject shows no intermediate tensors, but computes single ops (`Adapter.compute`) on the
oracle's inputs. Only the values that a report mentions come from the subject's own run.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.gguf.fields import Value
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.node import Node
from lockstep.engine.ops.build import Build
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.context.suite import Context, no_answer
from lockstep.harness.graph.honest_runs import AlongLlamaCpp
from lockstep.harness.graph.node_judge import NodeJudge, differing_weights
from lockstep.harness.graph.other_file import (
    first_other_input,
    first_other_node,
    other_parameters,
)
from lockstep.harness.graph.program import Place, Program
from lockstep.harness.graph.record import record
from lockstep.harness.graph.wiring import Wire, ends_of_layers, sites_of, wires_of
from lockstep.harness.judging.findings import Findings, Values, errors_between
from lockstep.harness.records import Answered, Evaluation, Request, Site, Unanswerable
from lockstep.harness.shadow.nodes import capture

# limit for an engine, as in a plan; a context may reserve gigabytes of address space
MEMORY = 8 << 30


def locate_along_nodes(context: Context) -> Findings:
    program = record_program(context)
    wires = wires_of(program)
    theirs = graph_of_subject(context) or program
    context.progress("judging every op")
    with both_files(context) as (oracle, subject):
        judge = NodeJudge(
            wires=wires,
            build=build_of(context),
            oracle=oracle,
            subject=subject,
            compute=computing(context.subject),
            changed=differing_weights(oracle, subject),
            wanted=ends_of_layers(wires),
            parameters=other_parameters(program, theirs),
        )
        run_through(context, judge)
        judge.finish()
        keys = differing_keys(oracle, subject)
    values = judge.kept
    context.progress("the subject's own run")
    if context.subject_info.shows_nodes:
        own = own_values(context, values, embeddings=not program.has_result)
    else:
        own = captured_values(context, values)
    return Findings(
        all=tuple(judge.findings),
        not_shown=(),
        hidden=tuple(judge.hidden),
        not_given=(),
        free=errors_between(values, own),
        values=guilty_values(judge, wires),
        embeddings=not program.has_result,
        unknown={reason: tuple(sites) for reason, sites in judge.unknown.items()},
        other_graph=first_other_node(program, theirs)
        or (first_other_input(program, theirs) if keys else ""),
        other_keys=keys,
    )


def record_program(context: Context, batches: Sequence[Batch] | None = None) -> Program:
    """Record the graph. Honest runs use the same recording. `batches` replaces the batches of the
    run."""
    context.progress("recording the graph")
    along = context.honest
    assert isinstance(along, AlongLlamaCpp)
    return along.recording(context.batches if batches is None else batches)


def graph_of_subject(context: Context) -> Program | None:
    """Record llama.cpp's graph of the subject's own file; None if it is the oracle's file.
    Parameters of ops come from this graph, because the parameters of the oracle's graph would agree
    whatever the subject's file says."""
    if context.subject_model == context.model:
        return None
    context.progress("recording the graph of the subject's file")
    found = record(context.subject, context.batches)
    if not isinstance(found, Program) and context.subject_info.shows_nodes:
        with Runner(memory_limit=MEMORY).open(
            "llama.cpp", context.subject_model, context.settings
        ) as session:
            found = record(session, context.batches)
    return found if isinstance(found, Program) else None


@contextmanager
def both_files(context: Context) -> Iterator[tuple[GgufFile, GgufFile]]:
    with open_model(context.subject_model) as subject:
        yield context.file, subject


def differing_keys(oracle: GgufFile, subject: GgufFile) -> tuple[str, ...]:
    """Return the metadata keys that shape llama.cpp's graph and differ between the files."""
    a, b = oracle.metadata, subject.metadata
    named = (key for key in {**a, **b} if not key.startswith(("general.", "tokenizer.")))
    return tuple(
        sorted(key for key in named if comparable_value(a.get(key)) != comparable_value(b.get(key)))
    )


def comparable_value(value: Value | None) -> Any:
    """Return the value in a form that can be compared; None if there is no value."""
    if value is None:
        return None
    data = value.data
    if isinstance(data, np.ndarray):
        data = data.tolist()
    elif isinstance(data, list):
        data = [comparable_value(each) if isinstance(each, Value) else each for each in data]
    return value.type, value.element, data


def build_of(context: Context) -> Build:
    s = context.settings
    return Build(lanes=context.lanes, n_threads=s.n_threads, generic=s.generic)


def run_through(context: Context, consume: Callable[[Node], None]) -> None:
    outcome = capture(context.llama_cpp, consume, context.batches)
    if not isinstance(outcome, Answered):
        raise no_answer(context.llama_cpp.name, "capture", outcome)


def computing(session: Session) -> Callable[[Node], NDArray[Any] | None]:
    """Return a function that computes one op with the engine. The function returns None if the
    engine lacks the op."""

    def compute(node: Node) -> NDArray[Any] | None:
        outcome = session.ask("compute", node)
        if isinstance(outcome, Unanswerable):
            return None
        if not isinstance(outcome, Answered):
            raise no_answer(session.name, f"compute {node.op} ({node.name})", outcome)
        value: NDArray[Any] = outcome.value
        return value

    return compute


def own_values(context: Context, sites: Collection[Site], *, embeddings: bool) -> Values:
    """Return the values at these sites in the subject's own run."""
    request = Request(
        batches=context.batches, capture=True, only=tuple(sites), embeddings=embeddings
    )
    run: Evaluation = context.ask(context.subject, "evaluate", request)
    assert run.trace is not None
    return run.trace.values()


def captured_values(context: Context, sites: Collection[Site]) -> Values:
    """Return the values at these sites, for a subject that shows its own graph."""
    found = record(context.subject, context.batches)
    if not isinstance(found, Program):
        return {}
    places = {place: site for place, site in sites_of(found).items() if site in sites}
    kept: Values = {}

    def keep(node: Node) -> None:
        if site := places.get(node.place):
            kept[site] = node.value.copy()

    outcome = capture(context.subject, keep, context.batches)
    return kept if isinstance(outcome, Answered) else {}


def guilty_values(judge: NodeJudge, wires: Mapping[Place, Wire]) -> Values:
    """Return the values that replace the results of wrong ops, and the choices of rows or experts
    that these ops use."""
    inputs = {wire.site: wire.inputs for wire in wires.values()}
    found = (f.site for f in judge.findings if f.mismatch is not None)
    guilty = [site for site in found if site in judge.kept]
    kept = (s for site in guilty for s in inputs[site] if s in judge.kept)
    choices = [s for s in kept if judge.kept[s].dtype.kind == "i"]
    return {site: judge.kept[site] for site in (*choices, *guilty)}
