"""Nodes near the beginning of a run. They are always stored, because noise cannot hide a fault in
them."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from lockstep.harness.graph.program import Graph, PlannedNode, Program, TensorView
from lockstep.harness.graph.wiring import layers_of
from lockstep.harness.judging.findings import by_layer

MOST_ROWS = 16  # rows of a token; rotations of more heads would take half a megabyte
# ops that copy the needed rows of a layer's result
COPIES = ("GET_ROWS", "CPY", "CONT", "SET_ROWS")
PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")


def early_nodes(program: Program) -> tuple[str, ...]:
    """Return the names of nodes at the beginning of the graph.

    They are the input of the first product by a weight, and the rotations and the result of that
    product's layer. Each node is in the graphs of all batches, except perhaps encoder batches.
    """
    graphs = [graph for graph in program.graphs if graph.step not in program.encoding]
    results = [results_of(program, graph) for graph in graphs]
    early = list(nodes_of_first_layer(graphs[0]))
    most = MOST_ROWS * rows(early[0].result) if early else 0
    names = {program.names[graphs[0].place(node)]: node.result for node in early}
    return tuple(
        name
        for name, result in names.items()
        if rows(result) <= most and can_be_kept([views.get(name) for views in results])
    )


def results_of(program: Program, graph: Graph) -> Mapping[str, TensorView]:
    return {program.names[graph.place(node)]: node.result for node in graph.nodes}


def rows(view: TensorView) -> int:
    return math.prod(view.ne[1:])


def can_be_kept(views: Sequence[TensorView | None]) -> bool:
    """Return True if one float32 matrix can hold the node: every graph has the node, with equal
    width."""
    present = [view for view in views if view is not None and view.type == "F32"]
    return len(present) == len(views) and len({view.ne[0] for view in present}) == 1


def nodes_of_first_layer(graph: Graph) -> Iterator[PlannedNode]:
    """Yield the nodes of the first layer, the product's input first. Yield nothing for a graph
    without products by a weight."""
    layers = list(layers_of(graph.nodes))
    writers: dict[int, PlannedNode] = {}
    for node, layer in zip(graph.nodes, layers, strict=True):
        if read := factor_of(graph, node):
            if read.root in writers:
                yield writers[read.root]
                yield from rotations_and_end(graph, layers, layer)
            return
        writers[node.result.root] = node


def factor_of(graph: Graph, node: PlannedNode) -> TensorView | None:
    """Return the factor by which this node multiplies a weight, or None."""
    if node.op not in PRODUCTS:
        return None
    weight, factor, *_ = node.sources
    by_weight = weight is not None and weight.root >= 0
    return factor if by_weight and graph.roots[weight.root].kind == "weight" else None


def rotations_and_end(
    graph: Graph, layers: Sequence[int | None], layer: int | None
) -> Iterator[PlannedNode]:
    if layer is None:
        return
    (group,) = (group for group in by_layer(layers) if layers[group[0]] == layer)
    nodes = [graph.nodes[at] for at in group]
    yield from (node for node in nodes if node.op == "ROPE")
    last = next(node for node in reversed(nodes) if node.op not in COPIES)
    if is_named(last):
        yield last


def is_named(node: PlannedNode) -> bool:
    """Return True if the node has a name. ggml numbers nodes without a name, and the numbers may
    change."""
    return not re.fullmatch(r"node_\d+", node.name)
