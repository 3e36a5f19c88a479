"""Checks that the experts chosen by an engine are as good as any other choice.

The op that sorts the experts gives all ids, and only the first few are used. The used ids may come
in any order, and any of several experts with the same score is right. So the scores of the chosen
experts are compared.
"""

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.node import Node
from lockstep.engine.ops.ggml.order import DESCENDING
from lockstep.engine.ops.near import F64
from lockstep.harness.graph.program import Graph, PlannedNode
from lockstep.harness.graph.segment import IDS

CHOOSE = ("ARGSORT", "TOP_K")
# ops that read or write rows by ids: number of the source with the ids; number and axis of the
# source that they index
READERS = {
    "GET_ROWS": (1, 0, 1),
    "SET_ROWS": (1, 2, 1),
    "MUL_MAT_ID": (2, 0, 2),
    "ADD_ID": (2, 1, 1),
}


def scores_of(node: Node) -> F64 | None:
    """Return the scores from which a node chooses ids, with the best score as the largest; None for
    other nodes."""
    if node.op not in CHOOSE:
        return None
    scores = node.wide(0)
    return scores if node.op == "TOP_K" or node.params[0] == DESCENDING else -scores


def used_of(graph: Graph, node: PlannedNode) -> int:
    """Return how many ids of a row later nodes read."""
    root, kind = node.result.root, node.result.type
    later = (reader for reader in graph.nodes if reader.index > node.index)
    views = (view for reader in later for view in reader.sources if view is not None)
    return max((v.ne[0] for v in views if (v.root, v.type) == (root, kind)), default=1)


def legal(ids: NDArray[np.generic], most: int) -> NDArray[np.int32]:
    """Return ids that later nodes can use. An id that names no expert or row is replaced by a valid
    id. most: the number of experts or rows."""
    known = np.nan_to_num(ids.astype(np.float64), posinf=0.0, neginf=0.0)
    return np.clip(known, 0, most - 1).astype(np.int32)


def rows_to_choose(graph: Graph, node: PlannedNode) -> int | None:
    """Return how many rows or experts the ids can name; None if the node gives no ids."""
    if node.op in CHOOSE:
        source = node.sources[0]
        assert source is not None
        return source.ne[0]
    if node.result.type not in IDS:
        return None
    own, found = node.result, []
    for reader in graph.nodes:
        ids, rows, axis = READERS.get(reader.op, (0, 0, 0))
        if not ids or reader.index <= node.index:
            continue
        view, whole = reader.sources[ids], reader.sources[rows]
        if (
            view is not None
            and whole is not None
            and (view.root, view.type) == (own.root, own.type)
        ):
            found.append(whole.ne[axis])
    return min(found, default=None)


def scores_at(scores: F64, ids: NDArray[np.generic], used: int) -> F64:
    """Return the scores of each row's chosen ids, (.., used), the largest first. They are NaN if
    the ids do not name that many different experts."""
    first = ids.reshape(*scores.shape[:-1], -1)[..., :used]
    with np.errstate(invalid="ignore"):
        at = first.astype(np.int64)
    good = ((at == first) & (at >= 0) & (at < scores.shape[-1])).all(axis=-1)
    good &= (np.diff(np.sort(at, axis=-1), axis=-1) > 0).all(axis=-1)
    found = np.take_along_axis(scores, np.clip(at, 0, scores.shape[-1] - 1), axis=-1)
    return np.where(good[..., None], -np.sort(-found, axis=-1), np.nan)
