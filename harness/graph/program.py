"""A recorded run of a model: graphs of nodes that read and write memory, and the inputs of the
graphs.

Memory is as in ggml: a tensor is a view of the bytes of its root, with an offset and strides. A
program contains no value that a node computes. It consists only of numbers, texts and arrays, so it
could be sent to another process.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.choices import choices
from lockstep.engine.errors import Unsupported

# computed: by a node of the graph. input: filled by llama.cpp for each graph. weight: from the
# model's file. cache: written by nodes and kept between graphs. carried: computed by a node of
# another graph.
Kind = Literal["computed", "input", "weight", "cache", "carried"]
# the second name is used with and without pooling
LOGITS, EMBEDDINGS = "result_output", "result_embd_pooled"
Place = tuple[int, int, int]  # step, ubatch, index


@dataclass(frozen=True, kw_only=True, slots=True)
class Root:
    """A piece of memory that tensors are views of."""

    kind: Kind
    name: str
    type: str
    size: int  # bytes
    cache: int = -1  # number of the cache in the program; -1: none
    carried: Place = (-1, -1, -1)  # the node whose result it holds


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorView:
    """The place and the layout of a tensor in the memory of its root."""

    name: str
    type: str  # ggml's name of the type
    ne: tuple[int, ...]
    nb: tuple[int, ...]  # strides in bytes, in ggml's order
    root: int  # number of the root in the graph; -1: a tensor without memory
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedNode:
    """An op with its sources and its result."""

    index: int
    op: str
    name: str
    layer: int | None
    params: bytes
    sources: tuple[TensorView | None, ...]
    result: TensorView


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Graph:
    """The graph of one ubatch, with the nodes in order, the memory that they share, and the bytes
    of the inputs."""

    step: int
    ubatch: int
    roots: tuple[Root, ...]
    nodes: tuple[PlannedNode, ...]
    inputs: Mapping[int, NDArray[np.uint8]]  # by root of the graph: the bytes that nodes read
    last_use: Mapping[int, int]  # by root of the graph: the last node that reads it
    result: str = LOGITS  # name of the graph's result

    @property
    def output(self) -> PlannedNode:
        """Return the node with the result, or the last node if no node has the result's name."""
        named = (node for node in reversed(self.nodes) if node.name == self.result)
        return next(named, self.nodes[-1])

    def place(self, node: PlannedNode) -> Place:
        return self.step, self.ubatch, node.index


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """The graphs of all batches, in the order in which they were computed."""

    graphs: tuple[Graph, ...]
    caches: tuple[Root, ...]
    # by batch: the computed row of each output; None: in the order of computation
    orders: tuple[tuple[int, ...] | None, ...]
    encoding: frozenset[int] = frozenset()  # steps of an encoder, which precedes a decoder

    @property
    def steps(self) -> int:
        return len(self.orders)

    @property
    def has_result(self) -> bool:
        """Return True if a node has the result's name, or if llama.cpp returns the last nodes of
        its graphs."""
        return any(self.orders) or any(graph.output.name == graph.result for graph in self.graphs)

    @property
    def width(self) -> int:
        """Return the width of a row of the result."""
        return self.graphs[-1].output.result.ne[0]

    @property
    def nodes(self) -> int:
        return sum(len(graph.nodes) for graph in self.graphs)

    def in_order(self, values: Mapping[Place, NDArray[Any]]) -> tuple[NDArray[Any] | None, ...]:
        """Return the results of each batch, (rows, width), in the order of its outputs; None for a
        batch with a missing value."""
        return tuple(self.rows_of(step, values) for step in range(self.steps))

    def rows_of(self, step: int, values: Mapping[Place, NDArray[Any]]) -> NDArray[Any] | None:
        if step in self.encoding:
            return np.empty((0, self.width), np.float32)
        outputs = [g for g in self.graphs if g.step == step]
        named = [g for g in outputs if g.output.name == g.result]
        found = [values.get(g.place(g.output)) for g in named or outputs]
        parts = [value.reshape(-1, value.shape[-1]) for value in found if value is not None]
        if not found or len(parts) < len(found):
            return None
        rows = np.concatenate(parts)
        order = self.orders[step]
        return rows if order is None else rows[list(order)]

    @cached_property
    def names(self) -> dict[Place, str]:
        """Return a unique name for each node. The op distinguishes nodes with the same name."""
        found: dict[Place, str] = {}
        for graph in self.graphs:
            for node, name in zip(graph.nodes, unique_names(graph.nodes), strict=True):
                found[graph.place(node)] = name
        return found

    def places_of(self, name: str) -> list[Place]:
        """Return the node's place in every graph. Raises Unsupported, with the nearest names, if no
        node has the name."""
        found = [place for place, known in self.names.items() if known == name]
        if not found:
            raise Unsupported(f"no node named {name!r} {choices(name, self.names.values())}")
        return found


def unique_names(nodes: Sequence[PlannedNode]) -> list[str]:
    """Return llama.cpp's names of the nodes, made unique.

    If nodes share a name, each of them also gets its op: `Qcur-0 ROPE`. If nodes share name and op,
    all but the first also get a number: `Qcur-0 ROPE 2`.
    """
    several = {name for name, n in Counter(node.name for node in nodes).items() if n > 1}
    seen: Counter[str] = Counter()
    found = []
    for node in nodes:
        name = f"{node.name} {node.op}" if node.name in several else node.name
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return found
