"""The memory of a replay. It consists of bytes, and views of it have offsets and strides like
ggml's tensors.

In a wide memory, ggml's F32 data are F64 at the same places, so offsets are twice as large.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.node import Operand
from lockstep.harness.graph.program import Graph, Place, Program, Root, TensorView
from lockstep.harness.shadow.judge import view_of

Bytes = NDArray[np.uint8]
WIDER = 2  # factor on the number of bytes


class Unknown(EngineError):
    """Raised for memory without values that our run has computed."""


class GraphMemory:
    """The memory of one replay. Weights stay in the file, and caches live as long as this
    memory."""

    def __init__(self, program: Program, file: GgufFile, *, wide: bool) -> None:
        self.file, self.wide = file, wide
        self.caches = {root.cache: self.empty(root) for root in program.caches}
        self.carried: dict[Place, NDArray[Any]] = {}  # results that later graphs read
        self.unknown: set[int] = set()  # caches with values that were not computed
        self.held: dict[int, Bytes] = {}
        self.roots: tuple[Root, ...] = ()
        self.inputs: Mapping[int, Bytes] = {}
        # operands of this graph, kept because each is read several times
        self.known: dict[TensorView, Operand] = {}

    def begin(self, graph: Graph) -> None:
        """Begin a graph. Only caches stay from the graph before."""
        self.roots, self.inputs, self.held, self.known = graph.roots, graph.inputs, {}, {}

    def empty(self, root: Root) -> Bytes:
        return np.zeros(root.size * (WIDER if self.is_widened(root.type, root) else 1), np.uint8)

    def is_widened(self, kind: str, root: Root) -> bool:
        return self.wide and kind == "F32" and root.kind != "weight"

    def operand_of(self, view: TensorView) -> Operand:
        """Return the tensor with its sizes in this run, but without values."""
        if view not in self.known:
            self.known[view] = self.first_seen(view)
        return self.known[view]

    def first_seen(self, view: TensorView) -> Operand:
        root = self.roots[view.root]
        kind, nb, offset = view.type, view.nb, view.offset
        if self.is_widened(kind, root):
            kind, nb, offset = "F64", tuple(WIDER * n for n in nb), WIDER * offset
        weight = root.name if root.kind == "weight" else ""
        return Operand(
            name=view.name, type=kind, ne=view.ne, value=None, weight=weight, offset=offset, nb=nb
        )

    def read(self, view: TensorView, producer: int = -1) -> Operand:
        """Return a view with its values. Raises Unknown if the values were not computed, or
        EngineError if the view lies outside the memory."""
        if view.root < 0:
            return Operand(name=view.name, type=view.type, ne=view.ne, value=None, nb=view.nb)
        operand = self.operand_of(view)
        value = view_of(self.bytes_of(view.root), operand)
        if not operand.weight:
            value = np.array(value, order="C")  # a copy, because an op may run in place
        return Operand(
            name=operand.name,
            type=operand.type,
            ne=operand.ne,
            value=value,
            offset=operand.offset,
            nb=operand.nb,
            producer=producer,
        )

    def write(self, view: TensorView, value: NDArray[Any]) -> None:
        """Write a value to a view. The first write to a root that a node computes creates its
        bytes."""
        root = self.roots[view.root]
        if root.kind == "computed" and view.root not in self.held:
            self.held[view.root] = self.empty(root)
        target = view_of(self.bytes_of(view.root), self.operand_of(view))
        target[...] = value.reshape(target.shape)

    def has(self, view: TensorView) -> bool:
        return self.roots[view.root].kind != "computed" or view.root in self.held

    def bytes_of(self, number: int) -> Bytes:
        root = self.roots[number]
        if root.kind == "cache":
            if root.cache in self.unknown:
                raise Unknown(f"{root.name} holds values that were not computed")
            return self.caches[root.cache]
        if number not in self.held:
            self.held[number] = self.bytes_given(root, number)
        return self.held[number]

    def bytes_given(self, root: Root, number: int) -> Bytes:
        """Return the bytes that a root has at the beginning of a graph. Raises Unknown if nothing
        has written them."""
        if root.kind == "weight":
            if root.name not in self.file.tensors:
                raise Unsupported(f"the weight {root.name!r} is not in the file")
            return self.file.raw(root.name)
        if root.kind == "carried":
            if root.carried not in self.carried:
                raise Unknown(f"{root.name}, of another graph, was not computed")
            return self.carried[root.carried].reshape(-1).view(np.uint8).copy()
        if root.kind == "computed" or number not in self.inputs:
            raise Unknown(f"{root.name} was not computed")
        raw = self.inputs[number].copy()
        if self.is_widened(root.type, root):
            return raw.view(np.float32).astype(np.float64).view(np.uint8)
        return raw

    def spoil(self, view: TensorView) -> None:
        """Mark the view's root as unknown, because its content was not computed."""
        root = self.roots[view.root]
        if root.kind == "cache":
            self.unknown.add(root.cache)
        else:
            self.held.pop(view.root, None)
            if view.root in self.inputs:
                self.inputs = {n: raw for n, raw in self.inputs.items() if n != view.root}

    def forget(self, number: int) -> None:
        self.held.pop(number, None)
