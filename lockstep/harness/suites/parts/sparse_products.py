"""The products with weights of a recorded graph, each alone, on nearly empty inputs.

Both engines compute them one op at a time, so nothing has to be put into a run, and every expert is
asked whatever the router would choose.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.node import Node, Operand, layout
from lockstep.harness.context.suite import Context
from lockstep.harness.graph.node_formats import PRODUCTS
from lockstep.harness.graph.node_judge import NodeJudge, differing_weights, with_weights
from lockstep.harness.graph.program import Graph, PlannedNode, Program, TensorView
from lockstep.harness.graph.wiring import weights_of, wires_of
from lockstep.harness.judging.findings import Findings
from lockstep.harness.judging.other_builds import without_amx
from lockstep.harness.locate.nodes import both_files, build_of, computing, record_program
from lockstep.harness.synth.draws import stream

KEPT = 8  # neighbours: within one block of every format, so that they share a scale


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
    """Of each weight the first product of the prompt, without a value yet."""
    seen: set[str] = set()
    for graph in program.graphs:
        for planned in graph.nodes if graph.step == 0 else ():
            weight = product_with(graph, planned)
            if weight and weight not in seen:
                seen.add(weight)
                yield sparse(graph, planned, seed)


def product_with(graph: Graph, planned: PlannedNode) -> str:
    """The weight that it multiplies float32 by; "" if it is no such product."""
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
    """Zeros, and in each row a run of `KEPT` seeded values, spread over the width."""
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
    """Experts: no token has one of them twice."""
    shape = tuple(reversed(view.ne))
    rows = np.arange(np.prod(shape[:-1]))[:, None] + np.arange(shape[-1])
    found: NDArray[np.int32] = (rows % n_expert).astype(np.int32).reshape(shape)
    return found
