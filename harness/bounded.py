"""Ops whose results carry their bounds, and what honest engines of other designs give instead."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.ops import attention, experts, gates, norms, products, rotation, softmax
from engine.ops.mirror import Mirror
from engine.ops.reference import I32, Bools, Formula
from engine.quants.base import F32
from engine.weights import Weight
from harness import designs
from harness.designs import Other
from harness.rope_designs import ways_to_turn
from harness.tolerances import EXACT, Bound, bounded

# by formula: its arguments -> what engines of other designs give
OTHERS: dict[Formula, Callable[..., Iterable[Other]]] = {
    norms.rms_norm: designs.norms_of_float32_sums,
    softmax.soft_max: designs.softmax_of_float32_sum,
    gates.swiglu: designs.swiglu_ways,
    experts.sum_experts: designs.experts_in_any_order,
    rotation.rope: ways_to_turn,
    products.linear: designs.plain_products,
    attention.kq: partial(designs.without_halves, attention.kq),
    attention.kqv: partial(designs.without_halves, attention.kqv),
    attention.flash_attn: designs.wide_attention,
}


class Bounded(np.ndarray[Any, Any]):
    """What an op gives, on the way to whom it is shown; what is computed from it has no bound."""

    bound: Bound
    others: Callable[[], Iterable[Other]]  # of other designs
    meant: Callable[[NDArray[Any]], NDArray[Any]] | None  # of several right answers

    def __array_finalize__(self, _: Any) -> None:
        self.bound, self.others, self.meant = EXACT, tuple, None

    @classmethod
    def of(cls, value: NDArray[Any], **what: Any) -> "Bounded":
        out = value.view(cls)
        vars(out).update(what)
        return out


def carried(value: NDArray[Any]) -> Bounded:
    """With its bound: a copy, or one correctly rounded operation, has none."""
    return value if isinstance(value, Bounded) else Bounded.of(value)


class BoundedOps(Mirror):
    """llama.cpp's ops, on whatever inputs."""

    bounds = True

    def run(self, formula: Formula, *args: Any) -> F32:
        value, bound = bounded(formula, *args, build=self.build)
        others = OTHERS.get(formula, lambda *_: ())
        return Bounded.of(value, bound=bound, others=partial(others, *args))

    def linear_id(self, x: F32, weight: Weight, ids: I32) -> F32:
        out = np.empty((*ids.shape, weight.shape[1]), np.float32)
        allowed, reason = np.empty(out.shape), ""
        parts: list[tuple[Bools, Other]] = []
        rows = np.broadcast_to(x, (*ids.shape, x.shape[-1]))
        for expert in np.unique(ids):
            chosen = ids == expert
            found = carried(self.linear(rows[chosen], weight.part(int(expert))))
            out[chosen], allowed[chosen], reason = found, found.bound.allowed, found.bound.reason
            parts += [(chosen, other) for other in found.others()]
        others = [partial(designs.gathered, out.shape, parts)] if parts else []
        return Bounded.of(out, bound=Bound(allowed, reason), others=lambda: others)

    def top_k(self, probs: F32, n: int) -> I32:
        """Which of several right answers is meant only shows in what an engine shows."""
        out = super().top_k(probs, n)
        return Bounded.of(out, meant=partial(designs.chosen, probs, out))
