"""Segments of an engine that converts activations to a different format than llama.cpp, or not at
all.

Lockstep accepts such a format only if it explains wrong segments of more than half of the quantised
weights, or all wrong segments.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.build import Build
from lockstep.harness.graph.held_segment import HeldSegment
from lockstep.harness.graph.program import Place
from lockstep.harness.graph.row_noise import Noises
from lockstep.harness.graph.segment import Found, Segment, is_wrong
from lockstep.harness.graph.watched import Seen
from lockstep.harness.graph.ways import Honest, Wide
from lockstep.harness.graph.wiring import Wire
from lockstep.harness.judging.conversions import families_of_builds, is_type_in_blocks
from lockstep.harness.judging.judge import SiteFinding
from lockstep.harness.judging.other_builds import other_builds
from lockstep.harness.records import Site

FIRST = 2  # number of members of a family that are always tried


class JudgeOfSegments(Protocol):
    """The part of a segment judge that this module uses."""

    build: Build
    wires: Mapping[Place, Wire]
    file: GgufFile

    @property
    def op_of(self) -> Mapping[Site, str]: ...

    def run(
        self, way: Honest, build: Build | None = None, *, of: Sequence[Segment]
    ) -> Mapping[Place, Seen]: ...

    def again(self, segment: Segment, ways: Iterable[tuple[Seen, Noises]]) -> HeldSegment: ...

    def finding_for(self, held: HeldSegment) -> SiteFinding: ...

    @property
    def place_of(self) -> Mapping[Site, Place]: ...


def of_other_builds(
    judge: JudgeOfSegments, segments: Sequence[Segment]
) -> list[Mapping[Place, Seen]]:
    """Run the segments as ggml does on other processors, and return each run's values."""
    builds = other_builds(judge.build, set(judge.op_of.values()))
    return [judge.run(Honest(), build, of=segments) for build in builds]


def converted_otherwise(
    judge: JudgeOfSegments,
    found: Sequence[Found],
    known: Mapping[Place, SiteFinding],
    noises: Noises,
) -> dict[Place, SiteFinding]:
    """Return the findings that agree under the format that explains most, if it explains enough."""
    wrong = [segment for segment, _ in found if is_wrong(known.get(segment.place))]
    left = [
        segment for segment in wrong if quantised_weights(judge, [segment])
    ]  # other segments do not change with the format
    every = quantised_weights(judge, (segment for segment, _ in found))
    most = 2 * len(quantised_weights(judge, left)) > len(every)
    if not left or not (most or len(left) == len(wrong)):
        return {}
    first, rest = enough_to_refute(judge, left, len(every))
    best: dict[Place, SiteFinding] = {}
    of_best: Sequence[Build] = ()
    for family in families_of_builds(judge.build):
        fine = findings_given(judge, first, family, noises)
        if fine:
            fine |= findings_given(judge, rest, family, noises)
        if len(fine) > len(best):
            best, of_best = fine, family
        if len(best) == len(left):
            break
    explained = quantised_weights(judge, (segment for segment in left if segment.place in best))
    if 2 * len(explained) > len(every):
        others = [segment for segment in left if segment.place not in best]
        return best | by_own_format(judge, others, of_best[0], known, noises)
    if not best or len(best) < len(wrong):
        return {}
    if any(segment.rounds for segment in left):
        return best
    # a single op may show a difference that long segments hide, so the other ops must agree with
    # this format too
    others = [s for s, _ in found if s not in wrong and quantised_weights(judge, [s])]
    fine = findings_given(judge, others, of_best, noises)
    explained |= quantised_weights(judge, (segment for segment in others if segment.place in fine))
    return best if 2 * len(explained) > len(every) else {}


def quantised_weights(judge: JudgeOfSegments, segments: Iterable[Segment]) -> set[str]:
    """Return the quantised weights that the segments read. Products with these convert
    activations."""
    sites = (site for s in segments for site in (s.wire.site, *s.inside))
    weights = {name for site in sites for name in judge.wires[judge.place_of[site]].weights}
    return {n for n in weights if is_type_in_blocks(judge.file.tensors[n].type.name)}


def by_own_format(
    judge: JudgeOfSegments,
    segments: Sequence[Segment],
    own: Build,
    known: Mapping[Place, SiteFinding],
    noises: Noises,
) -> dict[Place, SiteFinding]:
    """Return the findings for which the engine's own format gives fewer wrong elements than the
    known designs."""
    if not segments:
        return {}
    run = judge.run(Wide(), own, of=segments)
    found = {
        s.place: judge.finding_for(judge.again(s, ((run[s.place], noises),))) for s in segments
    }
    return {place: one for place, one in found.items() if has_fewer(one, known[place])}


def has_fewer(one: SiteFinding, other: SiteFinding) -> bool:
    a, b = one.mismatch, other.mismatch
    return a is not None and b is not None and a.kind == b.kind and a.mismatched < b.mismatched


def enough_to_refute(
    judge: JudgeOfSegments, left: Sequence[Segment], weights: int
) -> tuple[list[Segment], list[Segment]]:
    """Return enough segments to refute a format, and the remaining segments. The remaining segments
    have at most half of the weights."""
    by_weight = sorted(left, key=lambda segment: sorted(quantised_weights(judge, [segment])))
    n = 1
    while 2 * len(quantised_weights(judge, by_weight[n:])) > weights:
        n += 1
    return by_weight[:n], by_weight[n:]


def findings_given(
    judge: JudgeOfSegments, segments: Sequence[Segment], family: Sequence[Build], noises: Noises
) -> dict[Place, SiteFinding]:
    """Return the findings that agree with one of these ways to choose between two nearby steps.

    Few activations lie between two steps. So if the first ways explain nothing, the other ways are
    not tried.
    """
    fine: dict[Place, SiteFinding] = {}
    for n, build in enumerate(family):
        left = [segment for segment in segments if segment.place not in fine]
        if not left or (n >= FIRST and not fine):
            break
        fine |= agreeing(judge, left, build, noises)
    return fine


def agreeing(
    judge: JudgeOfSegments, segments: Sequence[Segment], build: Build, noises: Noises
) -> dict[Place, SiteFinding]:
    """Return the findings that agree with an engine of this build."""
    if not segments:
        return {}
    run = judge.run(Wide(), build, of=segments)
    tried = (judge.again(s, ((run[s.place], noises),)) for s in segments)
    return {h.segment.place: judge.finding_for(h) for h in tried if h.mismatch is None}
