"""Comparison of two engines' products on nearly empty inputs, which replace values in a run or
belong to single ops.

The part between an input and the next shown node is a segment of llama.cpp's graph. In the same
run, gates get larger inputs than small models have, so that clamps show. Norms get smaller inputs,
so that epsilon shows. An engine that computes single ops needs no run, and every expert is tested,
whatever the router would choose.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.node import Node, Operand, layout
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.graph.aliases import places_by_site, rename_wires
from lockstep.harness.graph.node_formats import PRODUCTS
from lockstep.harness.graph.node_judge import NodeJudge, differing_weights, with_weights
from lockstep.harness.graph.program import Graph, Place, PlannedNode, Program, TensorView
from lockstep.harness.graph.segment import segments_of
from lockstep.harness.graph.segments import SegmentJudge
from lockstep.harness.graph.wiring import Wire, weights_of, wires_of
from lockstep.harness.judging.findings import Findings, Values
from lockstep.harness.judging.other_builds import without_amx
from lockstep.harness.locate.locate import nothing_shown, replaceable
from lockstep.harness.locate.nodes import both_files, build_of, computing, record_program
from lockstep.harness.records import Evaluation, Request, Site
from lockstep.harness.synth.draws import stream

GATES = [(op,) for op in ("SWIGLU", "SWIGLU_OAI", "GEGLU", "REGLU", "SILU", "GELU")]
NORMS = (("RMS_NORM",), ("RMS_NORM", "MUL"))
LARGEST = 16.0  # limit for inputs of gates: SWIGLU_OAI clamps at 7, and ggml's GELU ends at 10
SMALLER = np.float32(2.0**-8)  # makes mean squares of about 1 as small as common values of epsilon

# takes a value and a seed, and returns the value with only few numbers
Keep = Callable[[Any, int], Any]
# numbers that are kept: neighbours in one block of every format, so that they share a scale
KEPT = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class SparseRun:
    """The values of an engine's run with nearly empty inputs."""

    program: Program
    places: Mapping[Site, Place]
    wires: Mapping[Place, Wire]
    products: Mapping[Place, Wire]
    rare: Mapping[Site, Values]  # for gates and norms: the values that replaced their inputs
    given: Values
    shown: Values


def sparse_run(context: Context, keep: Keep) -> SparseRun:
    """Return a run whose products have nearly empty inputs. keep: a function that makes a nearly
    empty input from a value. Raises NoAnswer."""
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
        text = f"Lockstep cannot put inputs of products into the runs of {who}"
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
    """Return the batches up to the first with one token, because engines have a separate kernel for
    a single row. In `trace` a few rows may be off by two activation steps, and a single row always
    meets this rule."""
    alone = (number for number, batch in enumerate(batches, start=1) if len(batch) == 1)
    return batches[: next(alone, 1)]


def judge_sparse_run(context: Context, run: SparseRun) -> Findings:
    """Judge the run without asking an engine."""
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
    """Return the products in which one factor is a weight of the file."""
    nodes = ((graph, node) for graph in program.graphs for node in graph.nodes)
    return {g.place(node): wires[g.place(node)] for g, node in nodes if product_with(g, node)}


def rare_inputs(
    program: Program, wires: dict[Place, Wire], places: dict[Site, Place], values: Values
) -> Iterator[tuple[Place, Values]]:
    """Yield other inputs for each gate and each norm that is a single formula of shown values."""
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


def products_along_nodes(context: Context) -> Findings:
    program = record_program(context)
    wires = wires_of(program)
    theirs, not_shown = computing(context.llama_cpp), []
    with both_files(context) as (oracle, subject):
        judge = NodeJudge(
            wires=wires,
            build=without_amx(build_of(context)),
            oracle=oracle,
            subject=subject,
            compute=computing(context.subject),
            changed=differing_weights(oracle, subject),
            wanted=(),
        )
        for node in on_sparse_inputs(program, context.seed):
            context.progress(f"products on nearly empty inputs: {node.name}")
            value = theirs(with_weights(node, oracle))
            if value is None:
                not_shown.append(wires[node.place].site)
            else:
                judge(replace(node, value=value))
        judge.accept_formats()
    return Findings(
        all=tuple(judge.findings),
        not_shown=tuple(not_shown),
        hidden=tuple(judge.hidden),
        not_given=(),
        free={f.site: f.err_local / (f.size or 1.0) for f in judge.findings},
        values={},
        unknown={reason: tuple(sites) for reason, sites in judge.unknown.items()},
    )


def on_sparse_inputs(program: Program, seed: int) -> Iterator[Node]:
    """Yield the first product with each weight in the first step of the run. The products have no
    values yet."""
    seen: set[str] = set()
    for graph in program.graphs:
        for planned in graph.nodes if graph.step == 0 else ():
            weight = product_with(graph, planned)
            if weight and weight not in seen:
                seen.add(weight)
                yield sparse(graph, planned, seed)


def product_with(graph: Graph, planned: PlannedNode) -> str:
    """Return the weight that float32 values are multiplied by; "" for any other op."""
    if planned.op not in PRODUCTS:
        return ""
    first, second = planned.sources[:2]
    if first is None or second is None or second.type != "F32":
        return ""
    return next(weights_of(graph, replace(planned, sources=(first,))), "")


def sparse(graph: Graph, planned: PlannedNode, seed: int) -> Node:
    weight, x, *ids = planned.sources
    assert weight is not None
    assert x is not None
    stored = graph.roots[weight.root]
    sources = [
        Operand(
            name=weight.name,
            type=weight.type,
            ne=weight.ne,
            value=None,
            weight=stored.name,
            offset=weight.offset,
            nb=weight.nb,
        ),
        operand(x, few(x, seed)),
        *(operand(view, in_turn(view, weight.ne[2])) for view in ids if view is not None),
    ]
    dtype, shape, _ = layout(planned.result.type, planned.result.ne)
    return Node(
        step=graph.step,
        ubatch=graph.ubatch,
        index=planned.index,
        op=planned.op,
        name=planned.name,
        layer=planned.layer,
        type=planned.result.type,
        ne=planned.result.ne,
        params=np.frombuffer(planned.params, np.int32),
        sources=tuple(sources),
        value=np.zeros(shape, dtype),
    )


def operand(view: TensorView, value: NDArray[np.float32] | NDArray[np.int32]) -> Operand:
    return Operand(name=view.name, type=view.type, ne=view.ne, value=value)


def few(view: TensorView, seed: int) -> NDArray[np.float32]:
    """Return zeros with `KEPT` neighbouring seeded values in each row. The places are spread over
    the width."""
    out = np.zeros(tuple(reversed(view.ne)), np.float32)
    rows = out.reshape(-1, out.shape[-1])
    raw = stream(seed, f"sparse {view.name}").random_raw(len(rows) * KEPT) >> np.uint64(40)
    values = (raw.astype(np.float32) * np.float32(2.0**-23) - 1).reshape(-1, KEPT)
    runs = -(-rows.shape[1] // KEPT)
    for at, row in enumerate(rows):
        start = (seed + at * max(1, runs // len(rows))) % runs * KEPT
        row[start : start + KEPT] = values[at, : rows.shape[1] - start]
    return out


def in_turn(view: TensorView, n_expert: int) -> NDArray[np.int32]:
    """Return expert ids in cyclic order, so that no token has the same expert twice."""
    shape = tuple(reversed(view.ne))
    rows = np.arange(np.prod(shape[:-1]))[:, None] + np.arange(shape[-1])
    found: NDArray[np.int32] = (rows % n_expert).astype(np.int32).reshape(shape)
    return found
