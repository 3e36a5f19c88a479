"""A shown tensor compared with a segment's result, and its description."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.graph.axis_names import axes_in_words
from lockstep.harness.graph.node_judge import axes_of
from lockstep.harness.graph.segment import Segment
from lockstep.harness.graph.watched import Seen
from lockstep.harness.judging.compare import largest, share_of_limit, worst_distance
from lockstep.harness.judging.judge import (
    SiteFinding,
    affected_alone,
    affected_indices,
    elements_compared,
    smallest_scale_error,
)
from lockstep.harness.records import Mismatch
from lockstep.harness.sites import SITES


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldSegment:
    """A shown tensor and a segment's value. Several ways to compute the segment are tried, and
    agreement with one is enough."""

    segment: Segment
    truth: NDArray[Any]
    shown: NDArray[Any]
    allowed: NDArray[np.float64]
    reason: str
    mismatch: Mismatch | None
    measured: bool  # True if the limit was measured
    whole: tuple[int, ...]  # the node's own shape

    def finding(self, *, op: str, weight: str) -> SiteFinding:
        wire = self.segment.wire
        error = worst_distance(self.truth, self.shown)
        wrong = self.mismatch is not None
        return SiteFinding(
            site=wire.site,
            op=op,
            err_local=error,
            err_oracle=error,  # no separate value of the oracle is known
            allowed=float(self.allowed.max(initial=0.0, where=np.isfinite(self.allowed))),
            reason=self.reason,
            size=largest(self.truth),
            mismatch=self.mismatch,
            at_fault="subject" if wrong else "",
            outputs=affected_indices(self.truth, self.shown, self.allowed) if wrong else (),
            alone=affected_alone(self.truth, self.shown, self.allowed) if wrong else {},
            compared=elements_compared(self.truth, self.shown, self.allowed),
            sees=smallest_scale_error(self.truth, self.allowed),
            layer=wire.layer,
            inputs=self.segment.starts,
            axes=self.axes,
            shape=self.truth.shape,
            weight=weight,
            worst=share_of_limit(self.truth, self.shown, self.allowed),
            measured=self.measured,
        )

    @property
    def axes(self) -> str:
        """Return the names of the shown axes. Axes of a shape without names get numbers."""
        numbered = axes_of(self.mismatch)
        if (name := self.segment.wire.site.name) not in SITES:
            return numbered
        return axes_in_words(SITES[name].shape, self.whole, self.truth.shape) or numbered


def nearest(tried: Sequence[HeldSegment]) -> HeldSegment:
    """Return the way with the fewest differing elements, if all ways differ."""
    by_value = [h for h in tried if h.mismatch is not None and h.mismatch.kind == "value"]
    if tried[0] not in by_value:
        return tried[0]
    return min(by_value, key=lambda held: held.mismatch.mismatched if held.mismatch else 0)


def hidden_cells(seen: Seen) -> Mismatch | None:
    """Return a mismatch if cells that are not shown have weight. Replaced values would give them no
    weight, so everything after them would agree."""
    if not seen.more:
        return None
    text = f"more cells than the {seen.truth.shape[-1]} shown ones have weight"
    return Mismatch(kind="shape", detail=text)
