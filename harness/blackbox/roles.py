"""Comparison of a slice's layer with the same layer of the model, op by op, in llama.cpp's graphs.

A layer's role may depend on its number: every sixth layer may have no window, and the first layer
may have no experts. The layer's inputs and results must have the same parameters in both graphs.
Otherwise the slice is a different model.
"""

import re
from typing import Any, TypeAlias

from lockstep.engine.batch import Batch
from lockstep.engine.errors import Unsupported
from lockstep.harness.context.runner import Session
from lockstep.harness.graph.program import Graph, PlannedNode, Program, TensorView
from lockstep.harness.graph.record import record
from lockstep.harness.graph.wiring import layers_of

ONE_TOKEN = (Batch.of([0]),)
# input that selects rows; the last layer drops the others, whatever its kind
ROWS_WITH_OUTPUTS = "out_ids"
NORMS = ("RMS_NORM", "NORM")
NUMBER = re.compile(r"blk\.\d+\.")
Node: TypeAlias = tuple[Any, ...]


def graph_of(session: Session) -> Graph:
    """Return llama.cpp's graph for one token. Raises Unsupported if llama.cpp shows no graph."""
    found = record(session, ONE_TOKEN)
    if not isinstance(found, Program):
        said = getattr(found, "message", str(found))
        raise Unsupported(f"{session.name} shows no graph of the model: {said}")
    return found.graphs[-1]


def role_of(graph: Graph, layer: int) -> tuple[Node, ...]:
    """Return a description of each node of a layer, without the layer's number."""
    found = []
    for node, own in zip(graph.nodes, layers_of(graph.nodes), strict=True):
        read = [source_of(graph, view) for view in node.sources if view is not None]
        if own == layer and not any(name == ROWS_WITH_OUTPUTS for _, name, _ in read):
            found.append((node.op, parameters(node), node.result.ne, *read))
    while found and found[-1][0] in NORMS:  # the model's last norm has no layer number
        found.pop()
    return tuple(sorted(found, key=repr))  # the order of queries, keys and values may differ


def parameters(node: PlannedNode) -> bytes:
    """Return a node's parameters; none for a view, whose parameter is an offset that may depend on
    earlier layers."""
    return b"" if node.op == "VIEW" else node.params


def source_of(graph: Graph, view: TensorView) -> Node:
    if view.root < 0:
        return ("nothing", "", view.ne)
    root = graph.roots[view.root]
    name = root.name if root.kind in ("weight", "input") else ""
    return root.kind, NUMBER.sub("blk.*.", name), view.ne


def mask_of(graph: Graph, layer: int) -> int:
    """Return the number of the graph input that masks what the layer sees; -1 if there is no
    mask."""
    for node, own in zip(graph.nodes, layers_of(graph.nodes), strict=True):
        for view in node.sources if own == layer else ():
            if view is not None and view.root >= 0 and "mask" in graph.roots[view.root].name:
                return view.root
    return -1
