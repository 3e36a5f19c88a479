"""Splits the values of a batch into the ubatches that llama.cpp makes of it, and adds the engine's
outputs.

In a model with states, an ubatch of llama.cpp has the same number of tokens from each sequence.
Later ubatches have the remaining tokens. An engine shows the rows of its whole batch. The ids in
each ubatch determine its rows. The engine's outputs count as the graph's result even if they are
not shown by name. Therefore the last ops (the head, a last norm, pooling) are judged too.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.harness.graph.program import Graph, Place, Program
from lockstep.harness.graph.wiring import site_of
from lockstep.harness.judging.findings import Values
from lockstep.harness.records import Site

TOKENS = "inp_tokens"  # llama.cpp's name of the input with token ids
Rows = NDArray[np.intp]


def by_ubatches(
    batches: Sequence[Batch], program: Program, places: Mapping[Site, Place], values: Values
) -> tuple[Values, set[Site]]:
    """Return the values of batches that llama.cpp splits, cut into ubatches, and all sites of these
    batches. Values that cannot be cut are not compared."""
    at = {graph.place(node): node.result.ne for graph in program.graphs for node in graph.nodes}
    cut: Values = {}
    sites: set[Site] = set()
    for step, batch in enumerate(batches):
        graphs = [graph for graph in program.graphs if graph.step == step]
        parts = parts_of(batch, graphs)
        if parts is None:
            continue
        where = {
            (place[1], name): place for place, name in program.names.items() if place[0] == step
        }
        for site in (site for site in values if site.step == step and site in places):
            sites.add(site)
            name = program.names[places[site]]
            there = [where.get((graph.ubatch, name)) for graph in graphs]
            pieces = [
                rows_in(values[site], batch, rows, at[place])
                for place, rows in zip(there, parts, strict=False)
                if place is not None
            ]
            whole = [piece for piece in pieces if piece is not None]
            if len(whole) == len(graphs):
                mine = [site, *(site_of(name, step, graph.ubatch) for graph in graphs[1:])]
                cut |= {s: piece for s, piece in zip(mine, whole, strict=True) if piece.size}
    return cut, sites


def parts_of(batch: Batch, graphs: Sequence[Graph]) -> list[Rows] | None:
    """Return the rows of the batch in each part; an empty list if they are ambiguous, for example
    because ids repeat. Return None if the batch is computed as a whole."""
    ids = [found for graph in graphs if (found := ids_of(graph)) is not None]
    if len(graphs) < 2 and all(np.array_equal(each, batch.tokens) for each in ids):
        return None
    row_of = {token: row for row, token in enumerate(batch.tokens.tolist())}
    given = [token for each in ids for token in each.tolist()]
    if len(ids) < len(graphs) or sorted(given) != sorted(row_of):
        return []
    return [np.array([row_of[token] for token in each.tolist()], np.intp) for each in ids]


def which_rows(batch: Batch, program: Program, place: Place, n: int) -> str:
    """Return a sentence that names the tokens of the batch in this part; "" if the place is in no
    part."""
    graphs = [graph for graph in program.graphs if graph.step == place[0]]
    parts = parts_of(batch, graphs) or []
    rows = next((r for g, r in zip(graphs, parts, strict=False) if g.ubatch == place[1]), None)
    if rows is None:
        return ""
    some = rows if len(rows) == n else rows[batch.outputs[rows]]
    if len(some) != n:
        return ""
    numbers = ", ".join(map(str, some.tolist()))
    return f"llama.cpp splits this batch; this part has tokens {numbers} of the batch"


def ids_of(graph: Graph) -> NDArray[np.int32] | None:
    found = (raw for root, raw in graph.inputs.items() if graph.roots[root].name == TOKENS)
    return next((raw.view(np.int32) for raw in found), None)


def rows_in(
    value: NDArray[Any], batch: Batch, rows: Rows, ne: tuple[int, ...]
) -> NDArray[Any] | None:
    """Return the rows of these tokens, or only the rows of tokens with outputs, depending on the
    node. Return None if the value has no rows for tokens."""
    asked = rows[batch.outputs[rows]]
    rank = np.cumsum(batch.outputs) - 1  # index among the tokens with outputs
    ways = {len(batch): (rows, asked), int(batch.outputs.sum()): (rank[asked],)}
    if len(batch) == int(batch.outputs.sum()):
        ways[len(batch)] = (rows,)
    n = len(value) if value.ndim else 0
    for wanted in ways.get(n, ()) if n else ():
        if value.size // n * len(wanted) == prod(ne):
            part: NDArray[Any] = value[wanted]
            return part
    return None


def outputs_of_graphs(
    program: Program, outputs: Sequence[NDArray[np.float32]]
) -> dict[Place, NDArray[Any]]:
    """Return the engine's output rows as the result of each batch's graph, if both have the same
    rows in the same order. Batches that llama.cpp splits, or whose rows it drops, are omitted."""
    found: dict[Place, NDArray[Any]] = {}
    for step, (rows, order) in enumerate(zip(outputs, program.orders, strict=False)):
        graphs = [graph for graph in program.graphs if graph.step == step]
        if len(graphs) != 1 or not rows.size or step in program.encoding:
            continue
        result = graphs[0].output
        shape = tuple(reversed(result.result.ne))
        in_order = order is None or list(order) == list(range(len(order)))
        if in_order and shape == (1, 1, *rows.shape):
            found[graphs[0].place(result)] = rows
    return found
