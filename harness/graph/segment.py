"""Segments: parts of the graph that lead from shown tensors to a shown tensor."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from lockstep.harness.graph.node_designs import has_designs
from lockstep.harness.graph.program import Place, Program
from lockstep.harness.graph.row_noise import Noise
from lockstep.harness.graph.wiring import Wire
from lockstep.harness.judging.judge import SiteFinding
from lockstep.harness.records import Site
from lockstep.harness.sites import SITES

IDS = ("I32", "I64")
NUMBERED = re.compile(r"node_\d+")  # ggml's default name of a node
PART = re.compile(r" ubatch \d+")  # part of a node's name; an engine shows its whole batch


@dataclass(frozen=True, kw_only=True, eq=False)
class Segment:
    """A part of the graph that leads from shown tensors to a shown tensor."""

    wire: Wire
    place: Place
    op: str  # the op at its end
    # shown tensors from which it is computed; empty: it is computed from the tokens
    starts: tuple[Site, ...]
    inside: tuple[Site, ...]  # nodes in between, in order
    rounds: bool  # True if a node in between computes numbers; ids are exact
    sorts: tuple[Place, ...] = ()  # nodes in between that choose experts
    formula: tuple[Place, ...] = ()  # all nodes, if a design covers them together
    # descriptions of nodes in between that have no name
    numbered: Mapping[Site, str] = field(default_factory=dict)

    @property
    def middle(self) -> Site | None:
        """Return the site that would halve the segment if it were shown, preferably a site with a
        name that traces use. Views and copies without a name would not help."""
        named = [s for s in self.inside if s.name in SITES]
        named = named or [s for s in self.inside if "(" not in s.name]
        return named[len(named) // 2] if named else None

    def reason(self, own: str, noise: Noise) -> str:
        """Describe the reason for a limit. own: the last op's bound; noise: the noise of perturbed
        runs."""
        if not self.rounds:
            return f"one op on the engine's own inputs: {own}"
        if noise.rows:
            bound = (
                f"twice the worst error of honest runs ({noise.worst:.1e}, or "
                f"{noise.share:.1e} of the largest number in a row), plus the last op's "
                "own bound"
            )
        else:
            bound = "the last op's own bound is enough, so Lockstep made no honest runs"
        text = f"{len(self.inside) + 1} ops from the engine's own inputs: {bound}"
        if self.middle is None:
            return text
        name = PART.sub("", str(self.middle))
        # quoted if the name contains a space: such a node has no name of its own, as in norm
        # RMS_NORM-0
        shown = f'"{name}"' if " " in name else name
        what = self.numbered.get(self.middle, "")
        return f"{text}; show {shown}{what} to halve it"


def segments_of(
    program: Program, wires: Mapping[Place, Wire], shown: Collection[Place]
) -> Iterator[Segment]:
    """Yield the segments in the order of execution."""
    for graph in program.graphs:
        ops = {wires[graph.place(node)].site: node.op for node in graph.nodes}
        exact = {wires[graph.place(n)].site for n in graph.nodes if n.result.type in IDS}
        at = {wires[graph.place(node)].site: graph.place(node) for node in graph.nodes}
        for node in graph.nodes:
            place = graph.place(node)
            # not shown, or without an element to compare
            if place not in shown or not prod(node.result.ne):
                continue
            starts, inside = before(place, at, wires, shown)
            formula = (*(ops[site] for site in inside), node.op)
            nodes = (*(at[site] for site in inside), place)
            yield Segment(
                wire=wires[place],
                place=place,
                op=node.op,
                starts=starts,
                inside=inside,
                rounds=not exact.issuperset(inside),
                sorts=tuple(at[s] for s in inside if ops[s] == "ARGSORT"),
                formula=nodes if len(nodes) == 1 or has_designs(formula) else (),
                numbered={
                    site: what_is(wires[at[site]], ops[site]) for site in number_sites(inside)
                },
            )


def number_sites(sites: Iterable[Site]) -> Iterator[Site]:
    return (site for site in sites if NUMBERED.fullmatch(PART.sub("", site.name)))


def what_is(wire: Wire, op: str) -> str:
    """Describe a node by its op and weights, because a name such as `node_12` says nothing."""
    return f" ({op} with {', '.join(wire.weights)})" if wire.weights else f" ({op})"


def before(
    place: Place, at: Mapping[Site, Place], wires: Mapping[Place, Wire], shown: Collection[Place]
) -> tuple[tuple[Site, ...], tuple[Site, ...]]:
    """Return the shown sites that this place depends on, and the hidden sites between."""
    starts: set[Place] = set()
    inside: set[Place] = set()
    waiting = [place]
    while waiting:
        for site in wires[waiting.pop()].inputs:
            earlier = at[site]
            if earlier in shown:
                starts.add(earlier)
            elif earlier not in inside:
                inside.add(earlier)
                waiting.append(earlier)
    first, between = (tuple(wires[p].site for p in sorted(each)) for each in (starts, inside))
    return first, between


Found = tuple[Segment, SiteFinding]


def is_wrong(finding: SiteFinding | None) -> bool:
    return finding is not None and finding.mismatch is not None


def wrong(found: Sequence[Found], sort: Place) -> int:
    """Return the number of wrong segments that depend on the order of this ARGSORT."""
    return sum(finding.mismatch is not None for s, finding in found if sort in s.sorts)
