"""Judges an engine by the tensors that it shows, without replacing any, for any architecture.

A segment is the part of llama.cpp's graph between shown tensors. Our ops compute each segment from
the engine's own earlier values, and compare the result with its later values. So a fault is in the
segment where it shows, and several faults show at once. A single op's error is limited by its
bound. A longer segment's error is measured by computing it with random honest errors.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.node import Node
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.near import Expected
from lockstep.harness.context.further_runs import is_small
from lockstep.harness.graph.expert_choice import CHOOSE, legal, rows_to_choose, scores_at, used_of
from lockstep.harness.graph.expert_order import orders_seen
from lockstep.harness.graph.held_segment import HeldSegment, hidden_cells, nearest
from lockstep.harness.graph.lookups import ways_of_lookups
from lockstep.harness.graph.node_designs import Computed, designs_of
from lockstep.harness.graph.other_conversions import converted_otherwise, of_other_builds
from lockstep.harness.graph.program import Graph, Place, PlannedNode, Program
from lockstep.harness.graph.rare_choices import explained_places
from lockstep.harness.graph.replay import replay
from lockstep.harness.graph.rounded_factors import multiplied_otherwise
from lockstep.harness.graph.row_noise import Noise, Noises, beyond, noise_between
from lockstep.harness.graph.segment import IDS, Found, Segment, is_wrong, segments_of, wrong
from lockstep.harness.graph.shown import leaves_out, part_shown
from lockstep.harness.graph.watched import Keep, Look, Seen, Watched, every_one
from lockstep.harness.graph.ways import Honest, Noisy, Wide
from lockstep.harness.graph.wiring import Dependencies, Wire
from lockstep.harness.judging.compare import mismatch_between
from lockstep.harness.judging.designs import Other
from lockstep.harness.judging.judge import SiteFinding, without_fault
from lockstep.harness.judging.stored import half_step, step_of
from lockstep.harness.judging.tolerances import where_limited
from lockstep.harness.records import Site
from lockstep.harness.synth.draws import stream

RUNS, MORE = 3, 9  # runs with random errors, and further runs before an engine is blamed
LONGEST = 6  # ops of a segment that a text names

Run = Mapping[Place, Seen]


@dataclass(kw_only=True, eq=False)
class SegmentJudge:
    program: Program
    wires: Mapping[Place, Wire]
    file: GgufFile  # the oracle's file, with the model's parameters
    build: Build
    shown: Mapping[Place, NDArray[Any]]  # values that the subject shows in its own run
    stored: Mapping[Place, str] = field(default_factory=dict)  # types of rounded values
    given: Mapping[Place, NDArray[Any]] = field(default_factory=dict)  # values put in there
    seed: int = 0
    limits: Collection[Site] = ()  # sites whose smallest detectable error is wanted
    only: Collection[Site] | None = None  # sites to judge; None: all that are shown
    # by ARGSORT: the ids with which the engine continued, if its experts are in another order
    orders: dict[Place, NDArray[Any]] = field(default_factory=dict)
    unjudged_ids: tuple[Site, ...] = ()  # later values are computed from these all the same

    def __post_init__(self) -> None:  # a scalar becomes a row of one element
        self.shown = {place: np.atleast_1d(value) for place, value in self.shown.items()}

    def findings(self) -> Iterator[SiteFinding]:
        """Yield the findings on all shown tensors of numbers, in the order of execution. Raises
        Unsupported if a node cannot be computed."""
        rounded = bool(self.stored)  # then the subject computed with other numbers than it shows
        honest, noise, found = self.first_look()
        self.orders = orders_seen(self, honest, found)
        if self.orders:
            before = found
            honest, noise, found = self.first_look()
            kept = {p: ids for p, ids in self.orders.items() if wrong(found, p) < wrong(before, p)}
            if len(kept) < len(self.orders):  # the values are wrong, not only their order
                self.orders = kept
                honest, noise, found = self.first_look()
        if any(finding.mismatch for _, finding in found):
            suspects = [segment for segment, finding in found if finding.mismatch]
            # a single op without a choice is left out, because its limit is its bound
            moved = [s for s in suspects if s.rounds or s.sorts or rounded]
            more = self.noise(honest, range(RUNS, RUNS + MORE), moved, jitter=rounded)
            noise = {place: noise[place] | more[place] for place in noise}
            formula = replace(self, build=replace(self.build, plain=True))
            plain = formula.run(Wide(), of=suspects)
            wider = self.noise(honest, range(RUNS), suspects, jitter=True)
            noises = noise, wider
            tabled = [] if rounded else suspects
            looked_up = ways_of_lookups(self, formula, tabled, honest, plain, range(RUNS))
            # rounded values do not show a design
            known = {} if rounded else self.by_designs(suspects, honest, noises)
            runs = honest, plain, *of_other_builds(self, suspects)
            for s in suspects:
                if s.place not in known:
                    ways = [(run[s.place], noises) for run in runs]
                    known[s.place] = self.finding_for(self.again(s, looked_up.get(s.place, ways)))
            if not rounded:
                left = [s for s in suspects if is_wrong(known[s.place])]
                rare = explained_places(self, left, honest, noise, is_small=is_small(self.file))
                known |= {place: without_fault(known[place]) for place in rare}
                known |= converted_otherwise(self, found, known, noises)
                known |= multiplied_otherwise(self, found, known)
            found = [(segment, known.get(segment.place, one)) for segment, one in found]
        yield from (finding for _, finding in found)

    def first_look(self) -> tuple[Run, dict[Place, Noise], list[Found]]:
        """Return a run without errors, the noise of some perturbed runs, and a finding for each
        segment."""
        rounded = bool(self.stored)
        every = list(segments_of(self.program, self.wires, self.shown))
        if self.only is not None:
            every = [segment for segment in every if segment.wire.site in self.only]
        ends, nothing = {s.place: s for s in every}, {s.place: Noise() for s in every}
        found: dict[Place, SiteFinding] = {}
        noisy: set[Place] = set()
        ids: set[Place] = set()  # places of ids that are not judged

        def keep(place: Place, seen: Seen) -> bool:
            segment = ends.get(place)
            if segment is None:
                return False
            if not self.is_of_numbers(segment, seen):
                ids.add(place)
                return False
            noisy.discard(place)  # the place may be computed again
            found.pop(place, None)
            held = self.hold(segment, seen, nothing, alone=rounded)
            # a value within the last op's bound is also within the bound plus noise
            if rounded or (segment.rounds and (held.mismatch or segment.wire.site in self.limits)):
                noisy.add(place)
                return True
            found[place] = self.finding_for(held)
            return held.mismatch is not None

        honest = self.run(Honest(), of=None if self.only is None else every, keep=keep)
        asked = [segment for segment in every if segment.place in noisy]
        noise = self.noise(honest, range(RUNS), asked, jitter=rounded)
        for s in asked:
            found[s.place] = self.finding_for(self.hold(s, honest[s.place], noise, alone=rounded))
        self.unjudged_ids = tuple(s.wire.site for s in every if s.place in ids)
        return honest, noise, [(s, found[s.place]) for s in every if s.place not in ids]

    def is_of_numbers(self, segment: Segment, seen: Seen) -> bool:
        """Return True if the values can be compared as numbers: floats in either run, or ids read
        from an input. Ids that follow from a hidden choice may come in another order, so they are
        reported as not compared."""
        place = segment.place
        chosen = any(self.op_of[site] in CHOOSE for site in segment.inside)
        if self.nodes[place][1].result.type in IDS and not (chosen or segment.rounds):
            return True
        return "f" in (self.shown[place].dtype.kind, seen.numbers.dtype.kind)

    @cached_property
    def nodes(self) -> dict[Place, tuple[Graph, PlannedNode]]:
        return {g.place(node): (g, node) for g in self.program.graphs for node in g.nodes}

    @cached_property
    def usable(self) -> dict[Place, NDArray[Any]]:
        """Return the shown values, with invalid ids replaced so that later nodes can be computed.
        With invalid ids, no later node could be judged."""
        most = {place: rows_to_choose(*self.nodes[place]) for place in self.shown}
        return {
            p: value if (n := most[p]) is None else legal(value, n)
            for p, value in self.shown.items()
        }

    @cached_property
    def needs(self) -> Dependencies:
        return Dependencies(self.program)

    # --- runs -----------------------------------------------------------------------------------

    def run(
        self,
        way: Honest,
        build: Build | None = None,
        values: Mapping[Place, Any] | None = None,
        look: Look | None = None,
        of: Sequence[Segment] | None = None,
        keep: Keep = every_one,
    ) -> Run:
        """Run our ops from shown values to every shown node. of: the segments to whose ends the ops
        run, None for all."""
        wanted = {place: value.shape for place, value in self.shown.items()}
        watched = Watched(way=way, wide=way.wide, wanted=wanted, look=look, keep=keep)
        values = {**self.orders, **(self.usable if values is None else values), **self.given}
        only = None
        if of is not None:
            only, read = self.needs.of({segment.place for segment in of}, self.needs.whole(values))
            values = {place: value for place, value in values.items() if place in read}
        done = replay(
            *(self.program, self.file, build or self.build, watched), values=values, only=only
        )
        if done.missing:
            raise Unsupported(f"not computed: {done.missing[0]}")
        if of is not None and any(segment.place not in watched.met for segment in of):
            # the segment needs a node that is not among its known sources
            return self.run(way, build, values, keep=keep)
        return watched.seen

    def noise(
        self,
        honest: Run,
        seeds: range,
        of: Sequence[Segment],
        *,
        jitter: bool = False,
        build: Build | None = None,
    ) -> dict[Place, Noise]:
        """Return the noise of these segments, in runs with random honest errors. jitter: True if
        the engine computes with wider numbers than it shows."""
        found = dict.fromkeys(honest, Noise())
        ends = {segment.place for segment in of}
        latest: dict[Place, Noise] = {}  # a place is computed twice if its run is repeated

        def keep(place: Place, moved: Seen) -> bool:
            if place in ends:
                seen = honest[place]
                a, b = seen.numbers, moved.numbers
                ids = seen.scores is not None
                rows = np.zeros(0) if ids else beyond(seen.truth, b, seen.allowed)
                latest[place] = replace(noise_between(a, b), rows=(rows,))
            return False

        for i in seeds if of else ():
            values = self.jitter_values(i) if jitter else None
            self.run(Noisy(seed=self.seed + i), build, values, of=of, keep=keep)
            found |= {place: found[place] | latest[place] for place in ends}
        return found

    def jitter_values(self, number: int) -> dict[Place, NDArray[Any]]:
        """Return the shown values, each number one step larger, one step smaller, or unchanged."""
        found: dict[Place, NDArray[Any]] = {}
        for place, value in self.usable.items():
            raw = stream(self.seed + number, f"shown {place}").random_raw(value.size)
            steps = (raw % np.uint64(3)).astype(np.float64).reshape(value.shape) - 1
            numbers = value.dtype.kind == "f"
            size = self.step_at(place, value) if numbers else 0
            with np.errstate(invalid="ignore"):  # an engine may show signalling NaN
                found[place] = value + steps * size if numbers else value
        return found

    def step_at(self, place: Place, value: NDArray[Any]) -> NDArray[np.float64]:
        """Return the largest distance between a shown number and the number that the engine
        used."""
        kind = self.stored.get(place)
        return half_step(value, kind) if kind else step_of(value)

    # --- verdicts -------------------------------------------------------------------------------

    def hold(
        self, segment: Segment, seen: Seen, noise: Mapping[Place, Noise], *, alone: bool = False
    ) -> HeldSegment:
        """Compare a segment's shown value with its limit. alone: single ops have noise too."""
        shown = self.shown[segment.place]
        noisy = segment.rounds or alone
        measured = noise.get(segment.place, Noise())  # none if the values agreed at once
        own = measured if noisy else Noise()
        more = own.room(seen.truth if seen.scores is None else seen.scores)
        if seen.scores is not None:
            seen, shown = self.of_choice(segment.place, seen, shown, more)
        truth, allowed = seen.truth, seen.allowed
        if noisy:  # a small difference before the last rounding may become one step after it
            allowed = allowed + more + step_of(truth)
        if shown.shape == truth.shape:
            allowed = allowed + half_step(shown, self.stored.get(segment.place, ""))
            # only a single op has a limit if some honest runs overflow
            free = np.isposinf(more) & (segment.rounds | ~np.isnan(seen.allowed))
            shown = np.where(free, truth, where_limited(truth, shown, allowed))
        mismatch = hidden_cells(seen) or mismatch_between(truth, shown, allowed)
        one_op = alone and not (segment.rounds or self.stored)
        rows = beyond(truth, shown, seen.allowed)
        if mismatch is None and one_op and not measured.explains(rows):
            allowed = seen.allowed
            mismatch = mismatch_between(truth, shown, allowed)
        return HeldSegment(
            segment=segment,
            truth=truth,
            shown=shown,
            allowed=allowed,
            whole=seen.whole,
            reason=segment.reason(seen.reason, own) + self.stored_as(segment),
            mismatch=mismatch,
            measured=bool(own.rows) or not segment.rounds,
        )

    def finding_for(self, held: HeldSegment) -> SiteFinding:
        weights = self.weights_of(held.segment)
        return held.finding(op=self.ops_of(held.segment), weight=", ".join(weights))

    def of_choice(
        self, place: Place, seen: Seen, ids: NDArray[Any], more: NDArray[np.float64]
    ) -> tuple[Seen, NDArray[Any]]:
        """Return scores instead of ids. Two scores may change places if each is off by `more`."""
        assert seen.scores is not None
        used = used_of(*self.nodes[place])
        truth, shown = (scores_at(seen.scores, each, used) for each in (seen.truth, ids))
        return replace(seen, truth=truth, allowed=np.broadcast_to(more, truth.shape)), shown

    def by_designs(
        self, suspects: Sequence[Segment], honest: Run, noises: Noises
    ) -> dict[Place, SiteFinding]:
        """Judge segments whose op has known designs: they agree with a design, or are wrong."""
        ends = {place: segment for segment in suspects for place in segment.formula}
        read: dict[Place, list[Node]] = {}
        found: dict[Place, SiteFinding] = {}

        def look(node: Node, expected: Expected) -> None:
            if segment := ends.get(node.place):
                nodes = read.setdefault(segment.place, [])
                nodes.append(node)
                if len(nodes) == len(segment.formula):
                    designs = designs_of(Computed(read.pop(segment.place), expected, self.build))
                    if designs is not None:
                        ways = (self.seen_by(segment, node, design) for design in designs)
                        every = ((seen, noises) for seen in chain([honest[segment.place]], ways))
                        found[segment.place] = self.finding_for(self.again(segment, every))

        if suspects:
            self.run(Honest(), look=look, of=suspects)
        return found

    def seen_by(self, segment: Segment, node: Node, design: Other) -> Seen:
        """Return a design's result, given the shown values."""
        shown = self.shown[segment.place]

        def part(value: Any) -> NDArray[Any]:
            whole = np.array(np.broadcast_to(np.asarray(value), node.value.shape))
            found = part_shown(whole, shown.shape, node.name)
            return whole if found is None else found

        whole = np.zeros(node.value.shape, np.float32)
        inside = part_shown(whole, shown.shape, node.name)
        if inside is not None:
            inside[...] = shown
        with np.errstate(all="ignore"):  # values of a degenerate model are judged as well
            value, bound = design(whole)
        truth = part(value)
        more = leaves_out(value.reshape(whole.shape), shown.shape, node.name)
        allowed = part(bound.allowed)
        return Seen(
            value=truth,
            truth=truth,
            allowed=allowed,
            reason=bound.reason,
            more=more,
            whole=whole.shape,
        )

    def again(self, segment: Segment, ways: Iterable[tuple[Seen, Noises]]) -> HeldSegment:
        """Judge a segment again, in several ways: with more noise, without ggml's roundings, or
        with wider numbers between ops."""
        # otherwise its inputs are the values that were put in
        may_be_wider = segment.rounds or self.put_in.isdisjoint(segment.starts)
        tried = []
        for seen, (noise, wider) in ways:
            one = self.hold(segment, seen, noise, alone=bool(self.stored))
            tried.append(one)
            if one.mismatch is not None and may_be_wider:
                one = self.hold(segment, seen, wider, alone=True)
            if one.mismatch is None:
                return one
        return nearest(tried)

    def ops_of(self, segment: Segment) -> str:
        if not segment.inside:
            return segment.op
        ops = [self.op_of[site] for site in segment.inside]
        shown = " ".join(ops[:LONGEST]) + " ..." * (len(ops) > LONGEST)
        return f"one of {len(ops) + 1} ops ({shown} {segment.op})"

    @cached_property
    def put_in(self) -> set[Site]:
        return {self.wires[place].site for place in self.given}

    @cached_property
    def place_of(self) -> dict[Site, Place]:
        return {wire.site: place for place, wire in self.wires.items()}

    @cached_property
    def op_of(self) -> dict[Site, str]:
        return {self.wires[place].site: node.op for place, (_, node) in self.nodes.items()}

    def weights_of(self, segment: Segment) -> tuple[str, ...]:
        """Return the weights of all ops in a segment, because any of them may be at fault."""
        places = (self.place_of[site] for site in (*segment.inside, segment.wire.site))
        read = (name for place in places for name in self.wires[place].weights)
        return tuple(dict.fromkeys(read))

    def stored_as(self, segment: Segment) -> str:
        kinds = {k for p, k in self.stored.items() if p == segment.place or segment.starts}
        return f"; stored in {', '.join(sorted(kinds))}" if kinds else ""
