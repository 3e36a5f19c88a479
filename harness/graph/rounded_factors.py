"""Segments of an engine that rounds the factors of its products, as graphics cards do.

One design must explain most of the segments with products of its kind. Then it is the engine's
design, and segments that it does not explain are wrong.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from numpy.typing import NDArray

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.products import CHANCES
from lockstep.harness.graph.held_segment import HeldSegment
from lockstep.harness.graph.probable import PRODUCTS
from lockstep.harness.graph.program import Graph, Place, PlannedNode
from lockstep.harness.graph.row_noise import Noise, Noises
from lockstep.harness.graph.segment import Found, Segment, is_wrong
from lockstep.harness.graph.watched import Seen
from lockstep.harness.graph.ways import Honest, Wide
from lockstep.harness.graph.wiring import Wire
from lockstep.harness.judging.compare import worst_distance
from lockstep.harness.judging.conversions import is_quantised
from lockstep.harness.judging.factor_designs import (
    ATTENTION,
    DESIGNS,
    NEARER,
    ROW_DESIGNS,
    ROWS,
    WEIGHTS,
    FactorDesign,
    Parts,
    designs_throughout,
    merge,
)
from lockstep.harness.judging.judge import SiteFinding
from lockstep.harness.records import Site

ATTENTION_OP = "FLASH_ATTN_EXT"
# least share of segments that must show a design, as one in so many; limits hide it in the others
SHOWS = 4
RUNS = 12  # runs with random errors; a factor rarely tips to the next step
FEW = 3  # segments and runs that refute most designs
Findings = dict[Place, SiteFinding]


class JudgeOfProducts(Protocol):
    """The part of a segment judge that this module uses."""

    build: Build
    file: GgufFile
    wires: Mapping[Place, Wire]
    shown: Mapping[Place, NDArray[Any]]

    @property
    def nodes(self) -> Mapping[Place, tuple[Graph, PlannedNode]]: ...

    @property
    def place_of(self) -> Mapping[Site, Place]: ...

    def run(
        self, way: Honest, build: Build | None = None, *, of: Sequence[Segment]
    ) -> Mapping[Place, Seen]: ...

    def noise(
        self,
        honest: Mapping[Place, Seen],
        seeds: range,
        of: Sequence[Segment],
        *,
        jitter: bool = False,
        build: Build | None = None,
    ) -> dict[Place, Noise]: ...

    def again(self, segment: Segment, ways: Iterable[tuple[Seen, Noises]]) -> HeldSegment: ...

    def finding_for(self, held: HeldSegment) -> SiteFinding: ...


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The design of an engine, and the findings that it explains."""

    design: FactorDesign | None
    fine: Findings


def multiplied_otherwise(
    judge: JudgeOfProducts, found: Sequence[Found], known: Mapping[Place, SiteFinding]
) -> Findings:
    """Return the findings on wrong segments that agree under the engine's design."""
    factors = {segment.place: factors_in(judge, segment) for segment, _ in found}
    wrong = {segment.place for segment, _ in found if is_wrong(known.get(segment.place))}

    def choose(those: frozenset[str] | None, designs: Iterable[FactorDesign]) -> Chosen:
        """Return the design that explains most wrong segments. those: the factors of the segments
        to use, None for all segments."""
        some = [s for s, _ in found if those is None or factors[s.place] <= those]
        best = Chosen(design=None, fine={})
        for design in designs:
            every = [s for s in some if design.names & factors[s.place]]
            left = [s for s in every if s.place in wrong]
            if SHOWS * len(left) < len(every):
                continue
            first = left[:: max(1, len(left) // FEW)]
            if not is_nearer(judge, first, design, known):
                continue
            if all(map(is_wrong, findings_by(judge, first, design, FEW).values())):
                continue
            given = findings_by(judge, every, design, RUNS)
            fine = {place: one for place, one in given.items() if not is_wrong(one)}
            explained = {place: one for place, one in fine.items() if place in wrong}
            if 2 * len(fine) > len(every) and len(explained) > len(best.fine):
                best = Chosen(design=design, fine=explained)
        return best

    out: Findings = {}
    chosen: Parts = {}
    for part, designs in DESIGNS.items():
        best = choose(part, designs)
        out |= best.fine
        chosen |= {part: best.design} if best.design else {}
    if WEIGHTS in chosen:
        out |= choose(ROWS, ROW_DESIGNS).fine
    wrong -= out.keys()
    if not chosen and is_quantised(judge.file):
        return out  # the limits of quantised layers hide designs that round less
    return out | choose(None, map(merge, together(chosen))).fine


def together(chosen: Parts) -> Iterator[Parts]:
    """Yield candidate designs for segments with products of both kinds. chosen: the designs found
    from segments of one kind."""
    yield from [chosen] if chosen else ()
    for part in (WEIGHTS, ATTENTION):
        if part not in chosen:
            yield from (chosen | {part: design} for design in DESIGNS[part])
    yield from () if chosen else designs_throughout()


def is_nearer(
    judge: JudgeOfProducts,
    segments: Sequence[Segment],
    design: FactorDesign,
    known: Mapping[Place, SiteFinding],
) -> bool:
    """Return True if one of these segments is much nearer to the design than to the designs tried
    before."""
    run = judge.run(Wide(), design.build(judge.build), of=segments)
    far = {s.place: worst_distance(run[s.place].truth, judge.shown[s.place]) for s in segments}
    return any(each <= NEARER * known[place].err_local for place, each in far.items())


def factors_in(judge: JudgeOfProducts, segment: Segment) -> frozenset[str]:
    """Return the names of the factors in all products of a segment."""
    found: set[str] = set()
    for site in (*segment.inside, segment.wire.site):
        place = judge.place_of[site]
        node = judge.nodes[place][1]
        if node.op == ATTENTION_OP:
            found |= ATTENTION
        elif node.op == "GET_ROWS" and judge.wires[place].weights:
            found.add("rows")
        elif node.op in PRODUCTS and judge.wires[place].weights:
            found |= WEIGHTS
        elif node.op in PRODUCTS:
            second = node.sources[1]
            chances = second is not None and second.name.startswith(CHANCES)
            found |= {"values", "chances"} if chances else {"keys", "queries"}
    return frozenset(found)


def findings_by(
    judge: JudgeOfProducts, segments: Sequence[Segment], design: FactorDesign, runs: int
) -> Findings:
    """Return the findings under this design. runs: the number of perturbed runs that measure its
    noise."""
    build = design.build(judge.build)
    run = judge.run(Wide(), build, of=segments)
    noise = judge.noise(run, range(runs), segments, build=build)
    found: Findings = {}
    for segment in segments:
        place = segment.place
        one = judge.finding_for(judge.again(segment, ((run[place], (noise, noise)),)))
        found[place] = replace(one, reason=f"{design.words}: {one.reason}", design=design)
    return found
