"""The products of an engine that shows tensors, on nearly empty inputs put into its run.

What lies between an input and the next shown node is a segment of llama.cpp's graph. In the same
run gates get larger inputs than small models have, where they clamp, and norms smaller ones, of
which epsilon is a part.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.graph.aliases import places_by_site, rename_wires
from lockstep.harness.graph.program import Place, Program
from lockstep.harness.graph.segment import segments_of
from lockstep.harness.graph.segments import SegmentJudge
from lockstep.harness.graph.wiring import Wire, wires_of
from lockstep.harness.judging.findings import Findings, Values
from lockstep.harness.locate.locate import nothing_shown, replaceable
from lockstep.harness.locate.nodes import build_of, record_program
from lockstep.harness.records import Evaluation, Request, Site
from lockstep.harness.suites.parts.sparse_products import product_with

GATES = [(op,) for op in ("SWIGLU", "SWIGLU_OAI", "GEGLU", "REGLU", "SILU", "GELU")]
NORMS = (("RMS_NORM",), ("RMS_NORM", "MUL"))
LARGEST = 16.0  # of a gate's inputs: SWIGLU_OAI clamps at 7, and ggml's GELU is cut off at 10
SMALLER = np.float32(2.0**-8)  # mean squares of about 1 come near to any epsilon

Keep = Callable[[Any, int], Any]  # a value and a seed -> the value with few of its numbers


@dataclass(frozen=True, kw_only=True, eq=False)
class SparseRun:
    """What an engine shows of a run into which such inputs were put."""

    program: Program
    places: Mapping[Site, Place]
    wires: Mapping[Place, Wire]
    products: Mapping[Place, Wire]
    rare: Mapping[Site, Values]  # of gates and norms: what was put in for them
    given: Values
    shown: Values


def sparse_run(context: Context, keep: Keep) -> SparseRun:
    """Raises NoAnswer."""
    batches = up_to_one_token(context.batches)
    program = record_program(context, batches)
    wires = wires_of(program)
    places = places_by_site(program, wires)
    wires = rename_wires(wires, places)
    products = products_of(program, wires)
    read = {site for wire in products.values() for site in wire.inputs}
    request = Request(batches=batches, capture=True, embeddings=not program.has_result)
    values = shown_by(context, request)
    given = {
        site: keep(value, context.seed)
        for site, value in values.items()
        if site in places and wires[places[site]].site in read and value.dtype.kind == "f"
    }
    rare = {wires[place].site: at for place, at in rare_inputs(program, wires, places, values)}
    given = {site: value for at in rare.values() for site, value in at.items()} | given
    given = replaceable(context, given)
    if not given:
        who = context.subject.name
        text = f"nothing that products read can be put into the runs of {who}"
        raise NoAnswer(nothing_shown(context), text, {})
    return SparseRun(
        program=program,
        places=places,
        wires=wires,
        products=products,
        rare=rare,
        given=given,
        shown=shown_by(context, replace(request, replace=given)),
    )


def up_to_one_token(batches: tuple[Batch, ...]) -> tuple[Batch, ...]:
    """The prompt and one token behind it: engines have another kernel for a single row. In `trace`
    a few rows may be off by two steps of an activation, and a single one always is few."""
    alone = (number for number, batch in enumerate(batches, start=1) if len(batch) == 1)
    return batches[: next(alone, 1)]


def judge_sparse_run(context: Context, run: SparseRun) -> Findings:
    """Asks nobody."""
    wires, places = run.wires, run.places
    starts = {wires[places[site]].site for site in run.given}
    ends = {wire.site for wire in run.products.values() if not starts.isdisjoint(wire.inputs)}
    ends |= {site for site, at in run.rare.items() if at.keys() <= run.given.keys()}
    judge = SegmentJudge(
        program=run.program,
        wires=wires,
        file=context.file,
        build=build_of(context),
        shown={places[site]: value for site, value in run.shown.items() if site in places},
        given={places[site]: value for site, value in run.given.items()},
        seed=context.seed,
        limits={wire.site for wire in run.products.values()},
        only=ends,
    )
    found = tuple(judge.findings())
    judged = {finding.site for finding in found}
    shown = {wires[place].site for place in judge.shown}
    others = [w.site for w in run.products.values() if w.site not in judged]
    return Findings(
        all=found,
        not_shown=(),
        hidden=tuple(site for site in others if site not in shown),
        not_given=tuple(site for site in others if site in shown),
        free={f.site: f.err_local / (f.size or 1.0) for f in found},
        values={},
        own_inputs=True,
    )


def products_of(program: Program, wires: dict[Place, Wire]) -> dict[Place, Wire]:
    """Those with a weight of the file."""
    nodes = ((graph, node) for graph in program.graphs for node in graph.nodes)
    return {g.place(node): wires[g.place(node)] for g, node in nodes if product_with(g, node)}


def rare_inputs(
    program: Program, wires: dict[Place, Wire], places: dict[Site, Place], values: Values
) -> Iterator[tuple[Place, Values]]:
    """Of each gate and norm that is one formula of what is shown, other inputs for it."""
    by_name = {wires[places[site]].site: site for site in values if site in places}
    ops = {graph.place(node): node.op for graph in program.graphs for node in graph.nodes}
    for segment in segments_of(program, wires, {places[site] for site in by_name.values()}):
        formula = tuple(ops[place] for place in segment.formula)
        starts = [by_name[site] for site in segment.starts]
        if formula in NORMS:
            yield segment.place, {site: scale(values[site], SMALLER) for site in starts}
        elif formula in GATES:
            yield segment.place, {site: enlarge(values[site]) for site in starts}


def enlarge(value: NDArray[Any]) -> NDArray[Any]:
    largest = np.abs(value).max(initial=0.0)
    return scale(value, LARGEST / largest if 0 < largest < LARGEST else 1.0)


def scale(value: NDArray[Any], by: float | np.float32) -> NDArray[Any]:
    with np.errstate(invalid="ignore"):  # an engine may show signalling NaN
        return (value * by).astype(value.dtype)


def shown_by(context: Context, request: Request) -> Values:
    run: Evaluation = context.ask(context.subject, "evaluate", request)
    assert run.trace is not None
    found: dict[Site, Any] = run.trace.values()
    return found
