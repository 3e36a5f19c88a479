"""Runs a recorded program with our ops. Every node reads our own earlier results.

A node that we cannot compute is reported, and its readers are not computed either.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.node import Node, layout
from lockstep.engine.ops.build import Build
from lockstep.harness.graph.memory import WIDER, GraphMemory, Unknown
from lockstep.harness.graph.program import Graph, Place, PlannedNode, Program
from lockstep.harness.graph.shown import WEIGHTS, part_shown
from lockstep.harness.graph.ways import Honest
from lockstep.harness.shadow.judge import SENSELESS

Trace = Callable[[Graph, PlannedNode, NDArray[Any]], None]  # gets each value when it is computed


@dataclass(frozen=True, kw_only=True)
class NotComputed:
    """A node that our replay did not compute."""

    place: Place
    op: str
    name: str
    reason: str

    def __str__(self) -> str:
        step, ubatch, index = self.place
        where = f"step {step}, ubatch {ubatch}, node {index} ({self.name})"
        return f"{self.op} at {where}: {self.reason}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Replayed:
    """The result of a run. outputs: the outputs of each batch, in its order; None if they were not
    computed."""

    outputs: tuple[NDArray[Any] | None, ...]  # each is (rows, width)
    missing: tuple[NotComputed, ...]  # causes, without the nodes that only depend on them
    nodes: int  # number of computed nodes
    unknown: int  # number of nodes that depend on values that were not computed


def replay(
    program: Program,
    file: GgufFile,
    build: Build,
    way: Honest | None = None,
    *,
    trace: Trace | None = None,
    values: Mapping[Place, NDArray[Any]] | None = None,
    only: Collection[Place] | None = None,
) -> Replayed:
    """Run the program. values: results that replace a node's own result before other nodes read it;
    only: the nodes to compute, None for all. A node outside `only` has only its value in
    `values`."""
    return ReplayRun(program, file, build, way or Honest(), trace, values or {}, only).run()


class ReplayRun:
    """One run of a program, from the first graph to the last."""

    def __init__(
        self,
        program: Program,
        file: GgufFile,
        build: Build,
        way: Honest,
        trace: Trace | None,
        values: Mapping[Place, NDArray[Any]],
        only: Collection[Place] | None = None,
    ) -> None:
        self.program, self.build, self.way = program, build, way
        self.trace, self.values, self.only = trace, values, only
        self.memory = GraphMemory(program, file, wide=way.wide)
        self.carried = {root.carried for graph in program.graphs for root in graph.roots}
        self.missing: list[NotComputed] = []
        self.nodes = self.unknown = 0
        self.wanted: set[Place] = set()  # results of the graphs
        self.found: dict[Place, NDArray[Any]] = {}
        self.writers: dict[int, int] = {}  # by root of a graph: the node that wrote to it last

    def run(self) -> Replayed:
        for graph in self.program.graphs:
            self.memory.begin(graph)
            self.writers = {}
            self.wanted.add(graph.place(graph.output))
            ends = ends_of(graph)
            for node in graph.nodes:
                self.step(graph, node)
                for number in ends.get(node.index, ()):
                    self.memory.forget(number)
        return Replayed(
            outputs=self.program.in_order(self.found),
            missing=tuple(self.missing),
            nodes=self.nodes,
            unknown=self.unknown,
        )

    def step(self, graph: Graph, planned: PlannedNode) -> None:
        place = graph.place(planned)
        value = self.value_of(graph, planned)
        self.writers[planned.result.root] = planned.index
        if value is None:
            if planned.result.root >= 0:
                self.memory.spoil(planned.result)
            return
        try:
            self.memory.write(planned.result, value)
        except Unknown:  # a replaced value, in memory whose other writers were left out
            return
        if place in self.carried:
            self.memory.carried[place] = value
        if place in self.wanted:
            self.found[place] = value

    def value_of(self, graph: Graph, planned: PlannedNode) -> NDArray[Any] | None:
        """Return the value that later nodes read; None if it was not computed."""
        place = graph.place(planned)
        if self.only is not None and place not in self.only:
            return self.value_given(planned, place)
        try:
            value = self.compute(graph, planned)
        except Unknown:
            self.unknown += 1
            return None
        except (EngineError, *SENSELESS) as error:
            self.missing.append(not_computed(graph, planned, error))
            return None
        self.nodes += 1
        if place not in self.values:
            return value
        return put_in(value, cast(self.values[place], value.dtype), planned.name)

    def value_given(self, planned: PlannedNode, place: Place) -> NDArray[Any] | None:
        """Return the given value of a node that is not computed; None if no value is given."""
        if place not in self.values or planned.result.root < 0:
            return None
        seen = self.memory.operand_of(planned.result)
        dtype, shape, _ = layout(seen.type, seen.ne)
        return put_in(np.zeros(shape, dtype), cast(self.values[place], dtype), planned.name)

    def compute(self, graph: Graph, planned: PlannedNode) -> NDArray[Any]:
        """Return the node's value, computed in the type and shape of its tensor."""
        node = self.node_of(graph, planned)
        value = self.way.compute(self.build, node).reshape(node.value.shape)
        if self.trace is not None:
            self.trace(graph, planned, value)
        return value

    def node_of(self, graph: Graph, planned: PlannedNode) -> Node:
        own = planned.result
        seen = self.memory.operand_of(own)
        blank = blank_of(seen.type, seen.ne)
        params = np.frombuffer(planned.params, np.int32)
        if planned.op == "SET" and seen.type == "F64":  # strides and offset are in bytes of F32
            params = np.concatenate([WIDER * params[:4], params[4:]])
        # a cast has its own result as a source, which is still empty
        sources = tuple(
            None
            if view is None
            else replace(seen, value=blank)
            if view == own and not self.memory.has(own)
            else self.memory.read(view, self.writers.get(view.root, -1))
            for view in planned.sources
        )
        return Node(
            step=graph.step,
            ubatch=graph.ubatch,
            index=planned.index,
            op=planned.op,
            name=planned.name,
            layer=planned.layer,
            type=seen.type,
            ne=own.ne,
            params=params,
            sources=sources,
            value=blank,
        )


def not_computed(graph: Graph, planned: PlannedNode, error: Exception) -> NotComputed:
    reason = str(error) if isinstance(error, EngineError) else f"malformed node: {error!r:.200}"
    return NotComputed(place=graph.place(planned), op=planned.op, name=planned.name, reason=reason)


def cast(value: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    with np.errstate(invalid="ignore"):  # an engine may show signalling NaN
        return np.asarray(value, dtype)


def put_in(value: NDArray[Any], given: NDArray[Any], name: str) -> NDArray[Any]:
    """Return a node's value with a given value in place of the part that is shown.

    In attention weights, cells that are not shown get no weight. In other values, elements that are
    not shown stay unchanged.
    """
    new = np.array(value, order="C")
    part = part_shown(new, given.shape, name)
    if part is None:
        raise EngineError(
            f"the value put in at {name} has shape {given.shape}, expected {value.shape}"
        )
    if name.startswith(WEIGHTS):
        new[...] = 0  # weights of rows of NaN are zero too
    part[...] = given
    return new


@lru_cache(maxsize=1 << 12)  # cached, because graphs have the same tensors in every run
def blank_of(kind: str, ne: tuple[int, ...]) -> NDArray[Any]:
    """Return zeros with the type and shape of a tensor. The array is a broadcast scalar, so nothing
    may write to it."""
    dtype, shape, _ = layout(kind, ne)
    return np.broadcast_to(np.zeros((), dtype), shape)


def ends_of(graph: Graph) -> dict[int, list[int]]:
    """Return for each node the roots that no later node reads, except caches."""
    ends: dict[int, list[int]] = {}
    for number, index in graph.last_use.items():
        if number >= 0 and graph.roots[number].kind != "cache":
            ends.setdefault(index, []).append(number)
    return ends
