"""The wiring of a recorded program's nodes: their sites, inputs, weights and layers."""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from lockstep.harness.graph.program import Graph, Place, PlannedNode, Program
from lockstep.harness.graph.shown import WEIGHTS
from lockstep.harness.judging.findings import by_layer
from lockstep.harness.records import Site

# Qcur-0, and a suffix that distinguishes nodes of the same name
IN_A_LAYER = re.compile(r"(.+?)-(\d+)((?: .*)?)")


@dataclass(frozen=True, kw_only=True)
class Wire:
    """A node of a program, with its place and its inputs."""

    site: Site
    layer: int | None
    inputs: tuple[Site, ...]  # sites that the same graph computed before
    weights: tuple[str, ...]  # tensors of the model's file


def wires_of(program: Program) -> dict[Place, Wire]:
    """Return the wire of every node, in the order of execution."""
    sites = sites_of(program)
    found: dict[Place, Wire] = {}
    for graph in program.graphs:
        writers: dict[int, Site] = {}  # by root: the node that wrote to it last
        for node, layer in zip(graph.nodes, layers_of(graph.nodes), strict=True):
            found[graph.place(node)] = Wire(
                site=sites[graph.place(node)],
                layer=layer,
                inputs=tuple(dict.fromkeys(writers[n] for n in roots_of(node) if n in writers)),
                weights=tuple(dict.fromkeys(weights_of(graph, node))),
            )
            writers[node.result.root] = sites[graph.place(node)]
    return found


def sites_of(program: Program) -> dict[Place, Site]:
    """Return each node's site by its unique name. Sites of later ubatches have the number of the
    ubatch."""
    return {place: site_of(name, place[0], place[1]) for place, name in program.names.items()}


def site_of(name: str, step: int, ubatch: int = 0) -> Site:
    """Return the site for a node's own name, such as `Qcur-0 ROPE`."""
    layer = None
    if inside := IN_A_LAYER.fullmatch(name):
        name, layer = inside[1] + inside[3], int(inside[2])
    return Site(step=step, layer=layer, name=name + (f" ubatch {ubatch}" if ubatch else ""))


def layers_of(nodes: Sequence[PlannedNode]) -> Iterator[int | None]:
    """Yield the layer of each node. A node without a layer in its name gets the layer of the nodes
    before and after it, if they have the same layer."""
    known = [node.layer for node in nodes]
    after = [*known[1:], None]
    for at in range(len(nodes) - 2, -1, -1):
        after[at] = known[at + 1] if known[at + 1] is not None else after[at + 1]
    before = None
    for layer, later in zip(known, after, strict=True):
        before = layer if layer is not None else before
        yield layer if layer is not None or before != later else before


def roots_of(node: PlannedNode) -> Iterator[int]:
    return (view.root for view in node.sources if view is not None)


def weights_of(graph: Graph, node: PlannedNode) -> Iterator[str]:
    for number in roots_of(node):
        if number >= 0 and graph.roots[number].kind == "weight":
            yield graph.roots[number].name


def ends_of_layers(wires: Mapping[Place, Wire]) -> set[Site]:
    """Return the last node of each layer in the first step."""
    first = [wire for place, wire in wires.items() if place[0] == 0]
    return {first[group[-1]].site for group in by_layer([wire.layer for wire in first])}


class Dependencies:
    """The nodes that other nodes depend on, also through memory that lasts from graph to graph."""

    def __init__(self, program: Program) -> None:
        self.at = {g.place(node): (g, node) for g in program.graphs for node in g.nodes}
        self.writers: dict[Hashable, list[Place]] = defaultdict(list)
        for place, (graph, node) in self.at.items():
            if node.result.root >= 0:
                self.writers[memory_of(graph, node.result.root)].append(place)
        self.known: dict[tuple[Set[Place], Set[Place]], tuple[set[Place], set[Place]]] = {}

    def whole(self, values: Mapping[Place, Any]) -> set[Place]:
        """Return the places whose given value is complete, so that they need not be computed.

        Partial values (cells in use, chosen experts) must be completed by computation, because
        zeros instead would be an error that no honest run has. Attention weights need no
        completion, because missing cells get a weight of zero.
        """
        nodes = {place: self.at[place][1] for place in values}
        return {
            place
            for place, value in values.items()
            if nodes[place].name.startswith(WEIGHTS)
            or np.size(value) == prod(nodes[place].result.ne)
        }

    def of(self, wanted: Set[Place], given: Set[Place]) -> tuple[set[Place], set[Place]]:
        """Return the nodes that the wanted nodes depend on, back to the given nodes, and the values
        that these nodes read.

        Both sets include the wanted nodes. Results are kept, because a judge asks the same question
        often.
        """
        key = frozenset(wanted), frozenset(given)
        if key not in self.known:
            self.known[key] = self.find(*key)
        return self.known[key]

    def find(self, wanted: Set[Place], given: Set[Place]) -> tuple[set[Place], set[Place]]:
        needed, read, waiting = set(wanted), set(wanted), list(wanted)
        while waiting:
            before = set(self.before(*self.at[waiting.pop()]))
            new = [place for place in before if place not in needed and place not in given]
            read.update(before)
            needed.update(new)
            waiting += new
        return needed, read

    def before(self, graph: Graph, node: PlannedNode) -> list[Place]:
        """Return the nodes that have written to the memory that a node reads."""
        found: list[Place] = []
        for number in roots_of(node):
            if number < 0:
                continue
            root = graph.roots[number]
            writers = self.writers[memory_of(graph, number)]
            if root.kind == "carried":
                found.append(root.carried)
            if root.kind in ("carried", "computed"):
                writers = [place for place in writers if place[2] < node.index]
            found += writers
        return found


def memory_of(graph: Graph, number: int) -> Hashable:
    """Return a key that identifies a piece of memory in the whole program."""
    cache = graph.roots[number].cache
    return cache if graph.roots[number].kind == "cache" else (graph.step, graph.ubatch, number)
