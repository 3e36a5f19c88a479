"""Base classes for catalogues of mistakes, in which one op, number, method or memory is wrong."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from lockstep.engine.memory.attention import CellView
from lockstep.engine.memory.base import LayerView, Memory
from lockstep.engine.model import Model
from lockstep.engine.ops.reference import ReferenceOps as Ops
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.parts.replaced_methods import put, stores_of
from lockstep.harness.mutants.base import Mutant

Op = Callable[..., F32]
Read = Callable[[str], Weight]
OPS = tuple(name for name in vars(Ops) if callable(getattr(Ops, name)) and name[0] != "_")
# Prefixes of methods that replace methods of the graph, of the cache of keys and values, and of
# what an attention or state memory shows to a layer.
OF_GRAPH, OF_STORE, OF_CELLS, OF_STATES = "graph_", "store_", "cells_", "states_"


class Mistake(Mutant):
    """A mistake in methods. A method with an op's name is called instead of this op, and gets the
    right op as its first argument.

    `graph_norm` and similar methods replace methods of the graph in the same way. `store_write`,
    `cells_visible` and `states_read` also get the object as first argument, before the right
    method. `numbers` may change the hyperparameters, and `change` may change the opened model.
    `taken` gets the reader of tensors and a tensor's name, and returns the tensor to use.
    """

    def make_ops(self) -> Ops:
        ops = super().make_ops()
        for name in OPS:
            if hasattr(type(self), name):
                put(ops, name, getattr(self, name))
        return ops

    def make_model(self) -> Model:
        model = super().make_model()
        model.graph.hparams = self.numbers(model.graph.hparams)
        put(model, "new_memory", self.new_memory)
        for name in names_with(type(self), OF_GRAPH):
            put(model.graph, name, getattr(self, OF_GRAPH + name))
        if taken := getattr(self, "taken", None):
            change_weights(model, taken)
        self.change(model)
        return model

    def new_memory(self, right: Callable[..., Memory], **shape: Any) -> Memory:
        memory = right(**shape)
        for store in stores_of(memory):
            self.put_all(store, OF_STORE)
        if names_with(type(self), OF_CELLS) or names_with(type(self), OF_STATES):
            put(memory, "views", self.views)
        return memory

    def put_all(self, owner: Any, prefix: str) -> None:
        for name in names_with(type(self), prefix):
            put(owner, name, partial(getattr(self, prefix + name), owner))

    def views(
        self, right: Callable[..., Mapping[int, LayerView]], *args: Any
    ) -> Mapping[int, LayerView]:
        found = right(*args)
        for view in found.values():
            self.put_all(view, OF_CELLS if isinstance(view, CellView) else OF_STATES)
        return found

    def numbers(self, hparams: Any) -> Any:
        return hparams

    def change(self, model: Model) -> None:
        pass


def names_with(cls: type[Mistake], prefix: str) -> tuple[str, ...]:
    """Return the names of the methods that begin with a prefix, without this prefix."""
    return tuple(name.removeprefix(prefix) for name in dir(cls) if name.startswith(prefix))


def change_weights(model: Model, change: Callable[[Read, str], Weight]) -> None:
    """Change how tensors are read. `change` gets the right reader and a name, and returns the
    weight."""
    weights = model.graph.tensors.weights
    right = weights.tensor

    def tensor(name: str, shape: tuple[int, ...]) -> Weight:
        return change(lambda other: right(other, weights.file.tensors[other].shape), name)

    weights.tensor = tensor  # type: ignore[method-assign]


def as_weight(weight: Weight, values: F32) -> Weight:
    """Return an unquantised weight with these values, to replace another weight."""
    raw = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
    return Weight(weight.name, WeightFormat.member("F32"), values.shape, raw)
