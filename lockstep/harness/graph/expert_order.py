"""In which order an engine goes through the experts of a token, seen by what it shows of each.

Any order is right, and few engines show theirs: llama.cpp's has no node of its own but the ARGSORT
of all experts. So where what is shown is the truth in another order, that order is taken.
"""

import numpy as np

from lockstep.engine.ops.reference import I32
from lockstep.engine.quants.base import F32
from lockstep.harness.graph.program import PlannedNode


def in_own_order(ids: I32, node: PlannedNode, shown: F32, truth: F32) -> I32 | None:
    """The ids of all experts, as ARGSORT gives them, with those that were used in the order shown.

    shown, truth: of the node, in any shape. None where it has no values of single experts, or
    where these are in the same order, or are not the same values.
    """
    order = ids.reshape(-1, ids.shape[-1]).copy()  # (tokens, experts)
    rows = rows_of(node, *order.shape)
    if rows is None:
        return None
    a, b = (value.astype(np.float64).reshape(len(order), *rows) for value in (shown, truth))
    moved = False
    for token, (mine, right) in enumerate(zip(a, b, strict=True)):  # (used, width) each
        nearest = np.abs(mine[:, None] - right[None]).max(axis=-1).argmin(axis=-1)
        if np.array_equal(np.sort(nearest), np.arange(len(nearest))):
            moved |= bool((np.diff(nearest) < 0).any())
            order[token, : len(nearest)] = order[token, nearest]
    return order.reshape(ids.shape) if moved else None


def rows_of(node: PlannedNode, n_tokens: int, n_expert: int) -> tuple[int, int] | None:
    """(used, width) of each token, if there are several used: ne is (width, used, tokens), or
    (used, tokens) where each has one number."""
    ne = node.result.ne
    if 1 < ne[1] <= n_expert and ne[2] == n_tokens:
        return ne[1], ne[0]
    if 1 < ne[0] <= n_expert and ne[1] == n_tokens and ne[2] == 1:
        return ne[0], 1
    return None
