"""Judges an engine by the tensors that it shows, with nothing put into it: of any architecture.

Whatever two shown tensors enclose is a segment of llama.cpp's graph. Each is computed by our ops
from what the engine itself shows before it, and held against what it shows behind it, so a fault
lies in the segment where it appears, and several show at once. What one op alone may be off is its
bound; of a longer segment it is measured, by computing it with random honest errors.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import Unsupported
from engine.gguf_file import GgufFile
from engine.ops.ggml.base import Build, Expected, Node
from harness.compare import largest, mismatch_between, worst_distance
from harness.designs import where_limited
from harness.graph.program import Graph, Place, PlannedNode, Program
from harness.graph.replay import replay
from harness.graph.ways import Honest, Noisy, Wide
from harness.graph.wiring import Wire
from harness.judge import SiteFinding, affected, elements_compared
from harness.records import Mismatch, Site
from harness.tolerances import Bound

RUNS, MORE = 3, 9  # with random errors; before anybody is blamed
LONGEST = 6  # ops of a segment that are named

Values = dict[Site, NDArray[Any]]
Computed = dict[Place, NDArray[Any]]


@dataclass(frozen=True)
class Bounded(Honest):
    """Keeps what some nodes may be off, and why."""

    wanted: Collection[Place] = ()
    bounds: dict[Place, Bound] = field(default_factory=dict)

    def result(self, node: Node, found: Expected) -> NDArray[Any]:
        place = node.step, node.ubatch, node.index
        if place in self.wanted:
            self.bounds[place] = Bound(found.allowed, found.reason)
        return super().result(node, found)


@dataclass(frozen=True, kw_only=True, eq=False)
class Segment:
    """What leads from shown tensors to a shown one."""

    wire: Wire
    place: Place
    op: str  # at its end
    starts: tuple[Site, ...]  # shown, that it is computed from; none: from the tokens
    inside: tuple[Site, ...]  # computed between, in order

    @property
    def middle(self) -> Site | None:
        """What to show next: it halves the segment."""
        return self.inside[len(self.inside) // 2] if self.inside else None


@dataclass(kw_only=True, eq=False)
class SegmentJudge:
    program: Program
    wires: Mapping[Place, Wire]
    file: GgufFile  # the oracle's: what the model says
    build: Build
    shown: Mapping[Place, NDArray[Any]]  # by the subject, in its own run
    seed: int = 0

    def findings(self) -> Iterator[SiteFinding]:
        """Of every shown tensor of numbers, in the order of execution. Raises Unsupported if a
        node cannot be computed."""
        way = Bounded(self.shown.keys())
        honest, bounds = self.computed(way), way.bounds
        noise = self.noise(honest, range(RUNS))
        found = []
        for segment in self.segments():
            if self.shown[segment.place].dtype.kind == "f":
                finding = self.finding(segment, honest, bounds[segment.place], noise)
                found.append((segment, finding))
        if any(finding.mismatch for _, finding in found):
            more = self.noise(honest, range(RUNS, RUNS + MORE))
            noise = {place: max(noise[place], more[place]) for place in noise}
            plain = self.computed(Wide(), replace(self.build, plain=True))
            found = [
                (s, self.again(s, f, (honest, plain), bounds[s.place], noise)) for s, f in found
            ]
        yield from (finding for _, finding in found)

    # --- runs -----------------------------------------------------------------------------------

    def computed(self, way: Honest, build: Build | None = None) -> Computed:
        """What our ops make of each shown node, from what is shown before it."""
        found: Computed = {}

        def see(graph: Graph, node: PlannedNode, value: NDArray[Any]) -> None:
            place = graph.place(node)
            if place in self.shown:
                found[place] = np.array(value)

        run = replay(
            self.program, self.file, build or self.build, way, trace=see, values=self.shown
        )
        if run.missing:
            raise Unsupported(f"not computed: {run.missing[0]}")
        return found

    def noise(self, honest: Computed, seeds: range) -> dict[Place, float]:
        """The worst error of any element of each node, of runs with random honest errors."""
        worst = dict.fromkeys(honest, 0.0)
        for i in seeds:
            moved = self.computed(Noisy(self.seed + i))
            for place, value in honest.items():
                worst[place] = max(worst[place], worst_distance(value, moved[place]))
        return worst

    # --- segments -------------------------------------------------------------------------------

    def segments(self) -> Iterator[Segment]:
        for graph in self.program.graphs:
            at = {self.wires[graph.place(node)].site: graph.place(node) for node in graph.nodes}
            for node in graph.nodes:
                place = graph.place(node)
                if place in self.shown:
                    starts, inside = self.before(place, at)
                    yield Segment(
                        wire=self.wires[place],
                        place=place,
                        op=node.op,
                        starts=starts,
                        inside=inside,
                    )

    def before(
        self, place: Place, at: Mapping[Site, Place]
    ) -> tuple[tuple[Site, ...], tuple[Site, ...]]:
        """What is shown, and what is not, up to there."""
        starts: set[Place] = set()
        inside: set[Place] = set()
        waiting = [place]
        while waiting:
            for site in self.wires[waiting.pop()].inputs:
                before = at[site]
                if before in self.shown:
                    starts.add(before)
                elif before not in inside:
                    inside.add(before)
                    waiting.append(before)
        shown, between = (
            tuple(self.wires[p].site for p in sorted(each)) for each in (starts, inside)
        )
        return shown, between

    # --- verdicts -------------------------------------------------------------------------------

    def finding(
        self,
        segment: Segment,
        honest: Computed,
        own: Bound,
        noise: Mapping[Place, float],
    ) -> SiteFinding:
        """own: of the op at the end."""
        truth = honest[segment.place]
        shown = self.shown[segment.place]
        shown = shown.reshape(truth.shape) if shown.size == truth.size else shown
        more = 2 * noise[segment.place] if segment.inside else 0.0
        allowed = np.broadcast_to(np.asarray(own.allowed, np.float64) + more, truth.shape)
        if shown.shape == truth.shape:
            shown = where_limited(truth, shown, allowed)
        mismatch: Mismatch | None = mismatch_between(truth, shown, allowed)
        finite = np.isfinite(allowed)
        return SiteFinding(
            site=segment.wire.site,
            op=self.ops_of(segment),
            err_local=worst_distance(truth, shown),
            err_oracle=0.0,
            allowed=float(allowed.max(initial=0.0, where=finite)),
            reason=self.reason(segment, own.reason, more),
            size=largest(truth),
            mismatch=mismatch,
            at_fault="subject" if mismatch else "",
            outputs=affected(truth, shown, allowed) if mismatch else (),
            compared=elements_compared(truth, shown, allowed),
            layer=segment.wire.layer,
            inputs=segment.starts,
            weight=", ".join(self.weights_of(segment)),
        )

    def again(
        self,
        segment: Segment,
        first: SiteFinding,
        runs: tuple[Computed, Computed],
        own: Bound,
        noise: Mapping[Place, float],
    ) -> SiteFinding:
        """With noise that is better known, and held against a run without ggml's roundings too."""
        if first.mismatch is None:
            return first
        tried = [self.finding(segment, run, own, noise) for run in runs]
        return next((one for one in tried if one.mismatch is None), tried[0])

    def ops_of(self, segment: Segment) -> str:
        if not segment.inside:
            return segment.op
        ops = [self.op_of[site] for site in segment.inside]
        shown = " ".join(ops[:LONGEST]) + (" ..." if len(ops) > LONGEST else "")
        return f"{len(ops) + 1} ops: {shown} {segment.op}"

    @cached_property
    def op_of(self) -> dict[Site, str]:
        nodes = ((g.place(node), node.op) for g in self.program.graphs for node in g.nodes)
        return {self.wires[place].site: op for place, op in nodes}

    @cached_property
    def wire_of(self) -> dict[Site, Wire]:
        return {wire.site: wire for wire in self.wires.values()}

    def weights_of(self, segment: Segment) -> tuple[str, ...]:
        wires = [*(self.wire_of[site] for site in segment.inside), segment.wire]
        return tuple(dict.fromkeys(name for wire in wires for name in wire.weights))

    def reason(self, segment: Segment, own: str, more: float) -> str:
        if not segment.inside:
            return f"one op on the engine's own inputs: {own}"
        text = (
            f"{len(segment.inside) + 1} ops from the engine's own inputs: twice the worst error of "
            f"honest runs ({more / 2:.1e}), and the last op's own bound"
        )
        return f"{text}; show {segment.middle} to halve it"
