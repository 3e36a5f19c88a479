"""A replay that keeps the values of some nodes, in the shapes in which an engine shows them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.node import PLAIN, Node
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.near import Expected
from lockstep.harness.graph.expert_choice import scores_of
from lockstep.harness.graph.program import Place
from lockstep.harness.graph.shown import leaves_out, part_shown
from lockstep.harness.graph.ways import Honest
from lockstep.harness.judging.tolerances import limits_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """One node of our own run, in the shown shape."""

    value: NDArray[Any]  # in the type of the tensor
    truth: NDArray[Any]  # before it is rounded to that type
    allowed: NDArray[np.float64]  # the limit of this op alone
    reason: str
    scores: NDArray[np.float64] | None = None  # for ids: the scores by which they are chosen
    more: bool = False  # True: the value has more elements than the shown one
    whole: tuple[int, ...] = ()  # the node's own shape, slowest axis first

    @property
    def numbers(self) -> NDArray[Any]:
        return self.value if self.scores is None else self.scores


Look = Callable[[Node, Expected], None]
Keep = Callable[[Place, Seen], bool]  # returns True if the value is to be kept


def every_one(place: Place, seen: Seen) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Watched(Honest):
    """A way that also keeps the values of some nodes. It wraps another way, which computes the
    nodes."""

    way: Honest
    wide: bool
    wanted: Mapping[Place, tuple[int, ...]]  # shapes of the shown values
    look: Look | None = None  # gets each node and its inputs
    keep: Keep = every_one
    seen: dict[Place, Seen] = field(default_factory=dict)
    met: set[Place] = field(default_factory=set)  # places that were computed, kept or not

    def build(self, build: Build, node: Node) -> Build:
        return self.way.build(build, node)

    def result(self, node: Node, found: Expected) -> NDArray[Any]:
        value = self.way.result(node, found)
        if self.look is not None:
            self.look(node, found)
        place = node.place
        if place in self.wanted and node.type in PLAIN:  # codes of quantised types are not numbers
            truth = found.value if found.answer is None else found.answer
            allowed = np.asarray(limits_of(truth, found.allowed), np.float64)
            if allowed.shape != np.shape(truth):
                allowed = np.broadcast_to(allowed, np.shape(truth))
            seen = Seen(
                value=self.shown_of(node, value),
                truth=self.shown_of(node, truth),
                allowed=self.shown_of(node, allowed),
                reason=found.reason,
                scores=scores_of(node),
                more=leaves_out(value.reshape(node.value.shape), self.wanted[place], node.name),
                whole=node.value.shape,
            )
            self.met.add(place)
            if self.keep(place, seen):
                self.seen[place] = seen
        return value

    def shown_of(self, node: Node, value: NDArray[Any]) -> NDArray[Any]:
        """Return a copy of the shown part of a node's value."""
        whole = np.reshape(value, node.value.shape)
        part = part_shown(whole, self.wanted[node.place], node.name)
        return np.array(whole if part is None else part)
