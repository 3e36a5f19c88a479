"""Judges two engines at each node of the oracle's graph, on the oracle's own inputs.

Nodes arrive as the oracle shows them, and are then forgotten. The subject computes the same op on
the same inputs, with the weights of its own file. So a fault shows at its own node, and several
faults show at once.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.node import Node, Operand, layout
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.base import expect
from lockstep.engine.ops.near import Expected
from lockstep.harness.graph.node_designs import Computed, compute_design, designs_of
from lockstep.harness.graph.node_formats import ProductFormats
from lockstep.harness.graph.other_file import Parameters, parameters_in_words
from lockstep.harness.graph.program import Place
from lockstep.harness.graph.wiring import Wire
from lockstep.harness.judging.compare import mismatch_between, share_of_limit, worst_distance
from lockstep.harness.judging.designs import Other
from lockstep.harness.judging.findings import Values
from lockstep.harness.judging.judge import SiteFinding, affected_indices, finding_of, without_fault
from lockstep.harness.judging.other_builds import other_builds
from lockstep.harness.judging.tolerances import Bound, limits_of
from lockstep.harness.records import Mismatch, Site
from lockstep.harness.shadow.judge import SENSELESS, rounded_to, view_of

AXES = ("ne3", "ne2", "ne1", "ne0")  # ggml's sizes in numpy's order
KEPT_BYTES = 1 << 30  # bytes of guilty values; runs with more wrong values are not repaired
OWN_WEIGHTS = "the same op on the same inputs and weights gives the same bits"
OWN_PARAMETERS = OWN_WEIGHTS.replace("weights", "parameters")

ABSENT = "the second run lacks these nodes of the first"

Compute = Callable[[Node], NDArray[Any] | None]  # returns None if the engine does not offer the op


@dataclass(kw_only=True, eq=False)
class NodeJudge:
    """Keeps the findings, and the values of guilty nodes, of their sources and of `wanted`.

    All other values are forgotten after their last reader. Values of guilty nodes take at most
    `limit` bytes. Beyond this limit faults are still found, but their values are not corrected for
    later nodes.
    """

    wires: Mapping[Place, Wire]
    build: Build
    oracle: GgufFile
    subject: GgufFile
    compute: Compute  # the subject computes the node
    changed: frozenset[str]  # weights with other values in the subject's file
    wanted: Collection[Site]
    findings: list[SiteFinding] = field(default_factory=list)
    hidden: list[Site] = field(default_factory=list)
    unknown: dict[str, list[Site]] = field(default_factory=dict)
    kept: Values = field(default_factory=dict)
    recent: Values = field(default_factory=dict)  # values that a later node of the graph reads
    limit: int = KEPT_BYTES
    # parameters with other values in the subject's file
    parameters: Parameters = field(default_factory=dict)
    formats: ProductFormats = field(init=False)
    # findings that hold if the subject's format is accepted
    otherwise: dict[Site, SiteFinding] = field(default_factory=dict)
    last_read: dict[Place, list[Site]] = field(init=False)
    there: set[Place] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.formats = ProductFormats(build=self.build)
        readers: dict[Site, Place] = {}
        for place, wire in self.wires.items():
            readers |= dict.fromkeys((wire.site, *wire.inputs), place)
        self.last_read = {}
        for site, place in readers.items():
            self.last_read.setdefault(place, []).append(site)

    def __call__(self, node: Node) -> None:
        """Judge the node, and forget the values that no later node reads."""
        place = node.place
        self.there.add(place)
        self.judge(node, place)
        for site in self.last_read.get(place, ()):
            self.recent.pop(site, None)

    def finish(self) -> None:
        """End a run. Nodes that did not arrive count as not compared."""
        absent = [wire.site for place, wire in self.wires.items() if place not in self.there]
        if absent:
            self.unknown.setdefault(ABSENT, []).extend(absent)
        self.accept_formats()

    def accept_formats(self) -> None:
        """Accept products that differ if a single other format of activations explains most
        products of their kernel. Call it after all nodes."""
        accepted = {site: self.otherwise[site] for site in self.formats.accept_format()}
        self.findings = [accepted.get(found.site, found) for found in self.findings]

    def judge(self, node: Node, place: Place) -> None:
        if place not in self.wires:
            raise EngineError(f"the second run has a new node: {node.name}")
        wire = self.wires[place]
        if not node.value.size:
            return
        self.remember(node, wire.site)
        if other := self.other_form(wire):
            self.unknown.setdefault(other, []).append(wire.site)
            return
        try:
            expected = expect(with_weights(node, self.oracle), self.build)
        except (EngineError, *SENSELESS) as error:
            known = isinstance(error, EngineError)
            reason = str(error) if known else f"the node is malformed: {error!r:.200}"
            self.unknown.setdefault(reason, []).append(wire.site)
            return
        finding = self.finding(node, wire, expected)
        if finding is None:
            return
        self.findings.append(finding)
        if finding.mismatch is not None:
            self.keep(site for site in (wire.site, *wire.inputs) if site in self.recent)

    def keep(self, sites: Iterable[Site]) -> None:
        more = {site: self.recent[site] for site in sites if site not in self.kept}
        self.limit -= sum(value.nbytes for value in more.values())
        if self.limit >= 0:
            self.kept |= more

    def remember(self, node: Node, site: Site) -> None:
        """Keep a value that views and later ops read."""
        self.recent[site] = node.value.copy()
        if site in self.wanted:
            self.kept[site] = self.recent[site]

    def finding(self, node: Node, wire: Wire, expected: Expected) -> SiteFinding | None:
        """Return the finding at a node. Return None if the subject lacks the op, unless the oracle
        is wrong."""
        own = self.own_parameters(node)
        theirs = self.theirs(node if own is None else replace(node, params=own))
        shown = node.value if expected.actual is None else expected.actual
        compared = shown if theirs is None else self.comparable(node, expected, theirs)
        bound = Bound(limits_of(expected.value, expected.allowed), expected.reason)
        truth = rounded_to(expected.value, shown)
        found = finding_of(
            wire.site, node.op, truth, shown, compared, bound, self.others(node, expected)
        )
        if theirs is None:
            self.hidden.append(wire.site)
            if found.mismatch is None:
                return None
            return self.describe_finding(node, wire, replace(found, at_fault="oracle"))
        self.formats.count(node)
        if found.mismatch is None:
            found = self.with_own_file(node, wire, theirs, found)
        elif found.at_fault != "oracle":
            weighted = with_weights(node, self.oracle)
            if self.formats.is_given(wire.site, weighted, compared):
                right = without_fault(found)
                right = self.with_own_file(node, wire, theirs, right)
                if found.at_fault == "both":
                    right = replace(found, at_fault="oracle")
                self.otherwise[wire.site] = self.describe_finding(node, wire, right)
        return self.describe_finding(node, wire, found)

    def describe_finding(self, node: Node, wire: Wire, found: SiteFinding) -> SiteFinding:
        own = self.own_parameters(node)
        return replace(
            found,
            layer=wire.layer,
            axes=axes_of(found.mismatch),
            inputs=wire.inputs,
            weight=", ".join(self.weights_to_blame(wire.weights)),
            parameters="" if own is None else parameters_in_words(node.params, own),
        )

    def own_parameters(self, node: Node) -> NDArray[np.int32] | None:
        return self.parameters.get(node.place)

    def other_form(self, wire: Wire) -> str:
        """Return why the subject's file has no such weight for the node; "" if it has one."""
        for name in self.oracle.tensors.keys() & set(wire.weights):
            ours, theirs = self.oracle.tensors[name], self.subject.tensors.get(name)
            if theirs is None:
                return f"the subject's file has no {name}"
            if theirs.ne != ours.ne:
                return f"{name} is {theirs.ne} in the subject's file, {ours.ne} in the oracle's"
        return ""

    def theirs(self, node: Node) -> NDArray[Any] | None:
        try:
            return self.compute(with_weights(node, self.subject))
        except Unsupported:  # the subject's file has other tensors
            return None

    def comparable(self, node: Node, expected: Expected, value: NDArray[Any]) -> NDArray[Any]:
        """Return the value to compare. In a value that orders ids, ties may be resolved in any
        way."""
        if expected.actual is None or value.shape != node.value.shape:
            return value
        given = with_weights(replace(node, value=value), self.oracle)
        try:
            again = expect(given, self.build).actual
        except (EngineError, *SENSELESS):  # for example, ids that are not whole numbers
            return value
        assert again is not None
        return again

    def others(self, node: Node, expected: Expected) -> Iterator[Other]:
        """Yield the known designs of the node's op. If there are none, yield an engine without
        ggml's deliberate roundings, and ggml on other processors.

        If the op has no deliberate roundings, llama.cpp's own bound is used, because it covers sums
        in any order.
        """

        def plain(_: NDArray[Any]) -> tuple[NDArray[Any], Bound]:
            found = expect(with_weights(node, self.oracle), replace(self.build, plain=True))
            same = np.array_equal(found.value, expected.value, equal_nan=True)
            chosen = expected if same else found
            return rounded_to(chosen.value, node.value), Bound(chosen.allowed, chosen.reason)

        if expected.actual is not None or expected.value.dtype.kind != "f":
            return
        whole = with_weights(node, self.oracle)
        known = designs_of(Computed([whole], expected, self.build))
        if known is not None:
            yield from known
            return
        yield plain
        for build in other_builds(self.build, (node.op,)):
            yield partial(compute_design, whole, build)

    def with_own_file(
        self, node: Node, wire: Wire, theirs: NDArray[Any], found: SiteFinding
    ) -> SiteFinding:
        """Check an agreement again if the subject's file has other parameters or weights for the
        op."""
        if self.own_parameters(node) is not None:
            return self.with_own(node, theirs, found, OWN_PARAMETERS)
        if not self.changed.isdisjoint(wire.weights):
            return self.with_own(node, theirs, found, OWN_WEIGHTS)
        return found

    def with_own(
        self, node: Node, theirs: NDArray[Any], found: SiteFinding, reason: str
    ) -> SiteFinding:
        """Return the finding, or a fault if the oracle's weights or parameters change the result at
        all, even within the bound."""
        right = self.compute(with_weights(node, self.oracle))
        mismatch = mismatch_between(right, theirs, 0.0) if right is not None else None
        if right is None or mismatch is None:
            return found
        return replace(
            found,
            err_local=worst_distance(right, theirs),
            worst=share_of_limit(right, theirs, 0.0),
            allowed=0.0,
            reason=reason,
            mismatch=mismatch,
            at_fault="subject",
            outputs=affected_indices(right, theirs, np.zeros(right.shape)),
        )

    def weights_to_blame(self, weights: tuple[str, ...]) -> tuple[str, ...]:
        """Return the weights that are known to differ; all weights if none is known to differ."""
        return tuple(name for name in weights if name in self.changed) or weights


def axes_of(worst: Mismatch | None) -> str:
    """Return the axes of the worst element's index. Leading axes of size one may be missing."""
    n = len(worst.index) if worst else len(AXES)
    return f"({', '.join(AXES[-n:] if n else ())})"


def with_weights(node: Node, file: GgufFile) -> Node:
    """Return the node with the values of its weights, as a file has them. Raises Unsupported."""
    sources = (s if s is None or not s.weight else weight_in(file, s) for s in node.sources)
    return replace(node, sources=tuple(sources))


def weight_in(file: GgufFile, operand: Operand) -> Operand:
    """Return the operand with the file's weight. If the weight has another type, only a whole
    weight can be used. Raises Unsupported if the file has no weight that can be used."""
    if operand.weight not in file.tensors:
        raise Unsupported(f"the weight {operand.weight!r} is not in the file")
    tensor, raw = file.tensors[operand.weight], file.raw(operand.weight)
    if tensor.type.name == operand.type:
        return replace(operand, value=view_of(raw, operand), weight="")
    if operand.offset or prod(operand.ne) != prod(tensor.ne):
        raise Unsupported(f"the weight {operand.weight!r} is {tensor.type.name} in the file")
    dtype, shape, _ = layout(tensor.type.name, operand.ne)
    value = np.ndarray(shape, dtype, raw)
    return replace(operand, type=tensor.type.name, nb=(), value=value, weight="")


def differing_weights(a: GgufFile, b: GgufFile) -> frozenset[str]:
    """Return the tensors whose bytes or types differ between the two files."""
    common = [name for name in a.tensors if name in b.tensors]
    return frozenset(name for name in common if not same_bytes(a, b, name))


def same_bytes(a: GgufFile, b: GgufFile, name: str, step: int = 1 << 24) -> bool:
    first, second = a.raw(name), b.raw(name)
    if a.tensors[name].type != b.tensors[name].type or first.size != second.size:
        return False
    starts = range(0, first.size, step)
    return all(np.array_equal(first[at : at + step], second[at : at + step]) for at in starts)
