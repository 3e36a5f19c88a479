"""What catalogues of mistakes are made of: one op, number, method or memory is wrong."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

from lockstep.engine.memory.attention import Attention
from lockstep.engine.memory.base import LayerView, Memory, Pair
from lockstep.engine.memory.store import Store
from lockstep.engine.model import Model
from lockstep.engine.ops.reference import ReferenceOps as Ops
from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.base import Mutant

Op = Callable[..., F32]
OPS = tuple(name for name in vars(Ops) if callable(getattr(Ops, name)) and name[0] != "_")


class Mistake(Mutant):
    """A method that is named as an op is called instead of it, and with it as its first argument.

    `numbers` may alter the hyperparameters, `change` the model that was opened. `view` and `cells`
    take the place of what every memory shows to a layer, and of what holds its keys and values.
    """

    view: ClassVar[type[LayerView] | None] = None
    cells: ClassVar[type[Store] | None] = None

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
        self.change(model)
        return model

    def new_memory(self, right: Callable[..., Memory], **shape: Any) -> Memory:
        memory = right(**shape)
        if self.cells:
            for store in stores_of(memory):
                store.__class__ = self.cells
        if self.view:
            put(memory, "views", self.views)
        return memory

    def views(
        self, right: Callable[..., Mapping[int, LayerView]], *args: Any
    ) -> Mapping[int, LayerView]:
        found = right(*args)
        for view in found.values():
            if self.view and isinstance(view, self.view.__mro__[1]):
                view.__class__ = self.view
        return found

    def numbers(self, hparams: Any) -> Any:
        return hparams

    def change(self, model: Model) -> None:
        pass


def stores_of(memory: Memory) -> Iterator[Store]:
    if isinstance(memory, Pair):
        for part in memory.both:
            yield from stores_of(part)
    elif isinstance(memory, Attention):
        yield memory.store


def put(owner: Any, method: str, wrong: Callable[..., Any]) -> None:
    """The wrong one takes the right one first."""
    setattr(owner, method, partial(wrong, getattr(owner, method)))
