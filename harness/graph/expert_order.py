"""The order in which an engine processes a token's experts, inferred from the values that it shows.

Any order is right, and few engines show their order. In llama.cpp's graph only the ARGSORT of all
experts shows the order. So if the shown values are the right values in another order, that order is
used.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.reference import I32
from lockstep.engine.quants.base import F32
from lockstep.harness.graph.program import Graph, Place, PlannedNode, Program
from lockstep.harness.graph.replay import replay
from lockstep.harness.graph.segment import Found, Segment
from lockstep.harness.graph.watched import Seen
from lockstep.harness.graph.ways import Honest


class OrderJudge(Protocol):
    """The part of a segment judge that this module uses."""

    program: Program
    file: GgufFile
    build: Build
    shown: Mapping[Place, NDArray[Any]]
    given: Mapping[Place, NDArray[Any]]

    @property
    def usable(self) -> Mapping[Place, NDArray[Any]]: ...

    @property
    def nodes(self) -> Mapping[Place, tuple[Graph, PlannedNode]]: ...


def orders_seen(
    judge: OrderJudge, honest: Mapping[Place, Seen], found: Sequence[Found]
) -> dict[Place, NDArray[Any]]:
    """Return the order of ids for each ARGSORT whose experts the engine processes in another order
    than we do.

    The widest wrong value after the ARGSORT determines the order, because narrow values may be
    nearly equal.
    """
    suspects: dict[Place, Segment] = {}
    for segment, finding in found:
        if finding.mismatch is None or not segment.sorts:
            continue
        shown = judge.shown[segment.place]
        if shown.shape != honest[segment.place].value.shape:
            continue
        first = suspects.setdefault(segment.sorts[-1], segment)
        if judge.shown[first.place].size < shown.size:
            suspects[segment.sorts[-1]] = segment
    if not suspects:
        return {}
    orders = {}
    for place, ids in ids_of(judge, suspects).items():
        at = suspects[place].place
        own = in_own_order(ids, judge.nodes[at][1], judge.shown[at], honest[at].value)
        if own is not None:
            orders[place] = own
    return orders


def ids_of(judge: OrderJudge, places: Mapping[Place, Segment]) -> dict[Place, NDArray[Any]]:
    """Return the ids of each ARGSORT, computed from the values shown before it."""
    ids: dict[Place, NDArray[Any]] = {}

    def see(graph: Graph, node: PlannedNode, value: NDArray[Any]) -> None:
        if graph.place(node) in places:
            ids[graph.place(node)] = np.array(value)

    values = {**judge.usable, **judge.given}
    replay(judge.program, judge.file, judge.build, Honest(sizes=False), values=values, trace=see)
    return ids


def in_own_order(ids: I32, node: PlannedNode, shown: F32, truth: F32) -> I32 | None:
    """Return the ids of all experts as ARGSORT gives them, with the used experts in the shown
    order.

    shown, truth: the node's values, in any shape. Return None if the values are not those of single
    experts, are in our order, or do not match.
    """
    order = ids.reshape(-1, ids.shape[-1]).copy()  # (tokens, experts)
    rows = rows_of(node, *order.shape)
    if rows is None:
        return None
    a, b = (value.astype(np.float64).reshape(len(order), *rows) for value in (shown, truth))
    moved = False
    for token, (mine, right) in enumerate(zip(a, b, strict=True)):  # each is (used, width)
        nearest = np.abs(mine[:, None] - right[None]).max(axis=-1).argmin(axis=-1)
        if np.array_equal(np.sort(nearest), np.arange(len(nearest))):
            moved |= bool((np.diff(nearest) < 0).any())
            order[token, : len(nearest)] = order[token, nearest]
    return order.reshape(ids.shape) if moved else None


def rows_of(node: PlannedNode, n_tokens: int, n_expert: int) -> tuple[int, int] | None:
    """Return (used, width) for each token, if several experts are used; else None. The node's ne is
    (width, used, tokens), or (used, tokens) if each expert has one number."""
    ne = node.result.ne
    if 1 < ne[1] <= n_expert and ne[2] == n_tokens:
        return ne[1], ne[0]
    if 1 < ne[0] <= n_expert and ne[1] == n_tokens and ne[2] == 1:
        return ne[0], 1
    return None
