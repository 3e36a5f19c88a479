"""Results of other honest designs at one node, or at a few nodes that form one formula.

If the designs of an op are known, no other result counts as honest. If they are unknown, an engine
may compute in float32 in any way, and its bound is far wider.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.node import Node
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.attention import halves
from lockstep.engine.ops.ggml.base import expect
from lockstep.engine.ops.ggml.gated import gate_and_up
from lockstep.engine.ops.ggml.rope import MROPE, NORMAL, VISION, bases, mixing, pair_places
from lockstep.engine.ops.near import Expected
from lockstep.engine.ops.rotation import I32, RopeParams
from lockstep.engine.quants.base import F32
from lockstep.harness.judging.designs import (
    Other,
    experts_in_any_order,
    norms_of_float32_sums,
    of_sum_shown,
    swiglu_ways,
)
from lockstep.harness.judging.other_builds import other_builds
from lockstep.harness.judging.rope_designs import ways_to_turn
from lockstep.harness.judging.tolerances import Bound
from lockstep.harness.shadow.judge import rounded_to

Result = tuple[NDArray[Any], Bound]


@dataclass(frozen=True, eq=False)
class Computed:
    """Nodes that each read the node before, and the expected value of the last node."""

    nodes: Sequence[Node]
    expected: Expected
    build: Build

    @property
    def last(self) -> Node:
        return self.nodes[-1]


Designs = Callable[[Computed], Iterable[Other]]


def designs_of(found: Computed) -> list[Other] | None:
    """Return the known designs for these nodes; None if any float32 computation is accepted."""
    first = found.nodes[0].optional(0)  # None for an op without sources
    if found.last.type != "F32" or first is None or first.type != "F32":
        return None
    ops = tuple(node.op for node in found.nodes)
    designs = sums if set(ops) == {"ADD"} and len(ops) > 1 else BY_OPS.get(ops)
    return None if designs is None else list(designs(found)) or None


def has_designs(ops: Sequence[str]) -> bool:
    """Return True if these consecutive ops are one formula with known designs."""
    return tuple(ops) in BY_OPS or (set(ops) == {"ADD"} and len(ops) > 1)


# --- rope -----------------------------------------------------------------------------------


def ropes(found: Computed) -> list[Other]:
    x, params = found.last.source(0).value, rope_params(found.last)
    positions = positions_of(found.last)
    if x is None or len(x) != 1 or params is None or positions is None:
        return []
    return [partial(one_stream, other) for other in ways_to_turn(x[0], positions, params)]


def one_stream(other: Other, shown: NDArray[Any]) -> Result:
    value, bound = other(shown[0])
    return value[None], Bound(np.broadcast_to(np.asarray(bound.allowed), value.shape), bound.reason)


def rope_params(node: Node) -> RopeParams | None:
    """Return the rotation's parameters; None if the pairs are not laid out as in text models."""
    mode, (base, scale) = int(node.params[2]), node.floats()[5:7]
    if mode == VISION or node.params[15]:
        return None
    pairs, factors = len(pair_places(node)[0]), node.optional(2)
    stretch = None if factors is None else node.wide(2).reshape(-1)[:pairs].astype(np.float32)
    kept, magnitude = mixing(node, pairs)
    return RopeParams(
        n_rot=int(node.params[1]),
        base=float(base),
        scale=float(scale),
        factors=stretch,
        halves=mode != NORMAL,
        kept=None if kept is None else kept.astype(np.float32),
        magnitude=float(magnitude),
    )


def positions_of(node: Node) -> I32 | None:
    """Return the positions; None if a token's pairs have different positions, as in models for
    images."""
    ids = node.source(1).value
    assert ids is not None
    each: I32 = ids.reshape(-1, node.ne[2])  # (1 or 4, tokens)
    used = np.unique(bases(node, len(pair_places(node)[0]))[0])
    same = (each[used] == each[used[0]]).all()
    return each[used[0]] if same or not node.params[2] & MROPE else None


# --- norms, softmax, gates and sums -----------------------------------------------------------


def norms(found: Computed) -> list[Other]:
    """Return the designs of a norm, alone or multiplied by a weight, (width,)."""
    first = found.nodes[0]
    x, weight = first.source(0).value, None
    if len(found.nodes) > 1:
        weight = factor_of(found.last, first)
    if x is None or (len(found.nodes) > 1 and weight is None):
        return []
    return list(norms_of_float32_sums(x, weight, float(first.floats()[0])))


def factor_of(product: Node, first: Node) -> F32 | None:
    """Return the other factor of the product; None if that factor is not a weight for the rows of
    the first node."""
    other = [s for s in product.sources[:2] if s is not None and s.producer != first.index]
    if len(other) != 1 or other[0].type != "F32" or other[0].value is None:
        return None
    flat: F32 = other[0].value.reshape(-1)
    return flat if len(flat) == first.ne[0] else None


def softmaxes(found: Computed) -> list[Other]:
    bound = Bound(found.expected.allowed, found.expected.reason)
    return [partial(of_sum_shown, rounded_to(found.expected.value, found.last.value), bound)]


def swiglus(found: Computed) -> list[Other]:
    return swiglu_ways(*gate_and_up(found.last))


def silus(found: Computed) -> list[Other]:
    return swiglu_ways(found.last.wide(0))


def sums(found: Computed) -> list[Other]:
    """Return the design for terms added one after the other. Return an empty list if the nodes do
    not add up exactly these terms."""
    inner = {node.index for node in found.nodes}
    sources = [s for node in found.nodes for s in node.sources[:2] if s is not None]
    terms = [s.value for s in sources if s.producer not in inner]
    shape = found.last.value.shape
    if len(terms) != len(inner) + 1 or any(t is None or t.shape != shape for t in terms):
        return []
    flat = np.stack([term.reshape(-1) for term in terms if term is not None])  # (terms, elements)
    (other,) = experts_in_any_order(flat.T[:, :, None])
    return [partial(in_shape, other, shape)]


def in_shape(other: Other, shape: tuple[int, ...], shown: NDArray[Any]) -> Result:
    value, bound = other(shown.reshape(-1, 1))
    return value.reshape(shape), Bound(np.reshape(bound.allowed, shape), bound.reason)


# --- attention --------------------------------------------------------------------------------


def attentions(found: Computed) -> list[Other]:
    """Return the designs of attention in float32, and ggml's designs on other processors. A design
    leaves the queries unchanged, or converts them to the type of the cache.
    """
    node, plain = found.last, replace(found.build, plain=True)
    query = node.source(0)
    forms = [node]
    if node.source(1).type == "F16" and query.value is not None:
        narrow = replace(query, value=halves(query.value).astype(np.float32))
        forms.append(replace(node, sources=(narrow, *node.sources[1:])))
    others = other_builds(found.build, (node.op,))
    ways = [(form, plain) for form in forms] + [(node, build) for build in others]
    return [partial(compute_design, *way) for way in ways]


def compute_design(node: Node, build: Build, _: NDArray[Any]) -> Result:
    found = expect(node, build)
    return rounded_to(found.value, node.value), Bound(found.allowed, found.reason)


BY_OPS: dict[tuple[str, ...], Designs] = {
    ("ROPE",): ropes,
    ("RMS_NORM",): norms,
    ("RMS_NORM", "MUL"): norms,
    ("SOFT_MAX",): softmaxes,
    ("SWIGLU",): swiglus,
    ("SILU",): silus,
    ("FLASH_ATTN_EXT",): attentions,
}
