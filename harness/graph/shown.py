"""The part of a node's tensor that an engine shows: the cells in use of scores and caches, or the
chosen experts.

llama.cpp has at least 256 cells. It masks the cells after the last cell in use. Other engines have
no masked cells.
"""

import re
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.node import Operand
from lockstep.harness.graph.program import Graph, PlannedNode, Program, TensorView
from lockstep.harness.shadow.judge import view_of

OVER_CELLS = re.compile(r"kq(?!v).*")  # names of nodes whose last axis is that of cells
WEIGHTS = "kq_soft_max"  # attention weights by cell; weights of zero need not be shown
EXPERTS = "ffn_moe_argsort-"  # ids of experts in order, of which only the first few are used
# a cache is written by rows; in a transposed cache of values, each number is a row
CACHE = re.compile(r"cache_(?P<kind>[kv])_l(?P<layer>\d+)(?: \(reshaped\))? \(view\)")


def part_shown(value: NDArray[Any], shape: tuple[int, ...], name: str) -> NDArray[Any] | None:
    """Return a view of the shown part of a node's value; None if the shape does not fit."""
    if CACHE.fullmatch(name) and value.shape[:2] == (1, 1) and len(shape) == 3:
        return cells_of(value, shape)
    if value.size == prod(shape):
        return value.reshape(shape)
    if name.startswith(EXPERTS) and len(shape) == 2 and value.shape[2] == shape[0]:
        return value[0, 0, :, : shape[1]]  # (tokens, used)
    if not OVER_CELLS.fullmatch(name) or value.ndim != 4 or len(shape) != 3:
        return None
    fits = value.shape[:-1] == (1, *shape[:-1]) and shape[-1] <= value.shape[-1]
    return value[0, :, :, : shape[-1]] if fits else None  # (heads, tokens, cells)


def leaves_out(value: NDArray[Any], shape: tuple[int, ...], name: str) -> bool:
    """Return True if cells with weight are not shown. Rows that are NaN are ignored."""
    part = part_shown(value, shape, name)
    if part is None or part.size == value.size or not name.startswith(WEIGHTS):
        return False
    return bool((value > 0).sum() > (part > 0).sum())


def cells_of(value: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any] | None:
    """Return the first cells of a cache, (cells, kv_heads, dim); None if the shape does not fit."""
    width = shape[1] * shape[2]
    if not width or value.size % width or value.size // width < shape[0]:
        return None
    if value.shape[-1] == width:
        return value.reshape(-1, *shape[1:])[: shape[0]]
    if value.shape[-1] != 1:
        return None
    return value.reshape(width, -1).T.reshape(-1, *shape[1:])[: shape[0]]


def cells_in_use(program: Program, graph: Graph, node: PlannedNode, shape: tuple[int, ...]) -> int:
    """Return the number of cells that a shown tensor must have to include all cells in use. Return
    0 if the node has no cells, or if the number is unknown."""
    if node.op == "SET_ROWS" and CACHE.fullmatch(node.name) and len(shape) == 3:
        return cells_written(program, graph, node, shape[1] * shape[2])
    if OVER_CELLS.fullmatch(node.name) and not node.name.startswith(WEIGHTS):
        return cells_seen(graph, node)
    return 0


def cells_written(program: Program, graph: Graph, node: PlannedNode, width: int) -> int:
    """Return the number of cells, from the first, that this and earlier graphs have written to a
    cache. Counting ends at the first gap, because the cells after it belong to another stream."""
    cells = prod(node.result.ne) // width if width else 0
    cache, used = graph.roots[node.result.root].cache, np.zeros(cells + 1, np.bool_)
    for each in program.graphs[: program.graphs.index(graph) + 1] if cells else ():
        for writer in each.nodes:
            ids = input_at(each, writer.sources[1]) if writer.op == "SET_ROWS" else None
            if ids is not None and each.roots[writer.result.root].cache == cache >= 0:
                # a transposed cache of values has more rows than cells
                used[ids.reshape(-1) % cells] = True
    return int(used.argmin())


def cells_seen(graph: Graph, scores: PlannedNode) -> int:
    """Return the number of cells up to the last cell that the mask of the softmax shows to any
    token; 0 if unknown."""
    later = (node for node in graph.nodes if node.index > scores.index and node.op == "SOFT_MAX")
    for node in later:
        if node.result.ne[0] == scores.result.ne[0]:
            mask = input_at(graph, node.sources[1]) if len(node.sources) > 1 else None
            if mask is None:
                return 0
            seen = np.flatnonzero(~np.isneginf(mask).all(axis=(0, 1, 2)))
            return int(seen[-1]) + 1 if seen.size else 0
    return 0


def input_at(graph: Graph, view: TensorView | None) -> NDArray[Any] | None:
    """Return the graph's input at this view; None if a node computes it."""
    if view is None or view.root not in graph.inputs:
        return None
    seen = Operand(
        name=view.name, type=view.type, ne=view.ne, value=None, offset=view.offset, nb=view.nb
    )
    return view_of(graph.inputs[view.root], seen)
