"""Engines that compute attention on quantised caches correctly, but not in llama.cpp's way."""

from collections.abc import Callable
from typing import Any, ClassVar

from numpy.typing import NDArray

from lockstep.engine.memory.base import Memory
from lockstep.engine.model import Model
from lockstep.engine.ops.coded import decode
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.parts.replaced_methods import put, stores_of
from lockstep.harness.adapters.reference import Reference

HONEST_CACHES: dict[str, "type[HonestCache]"] = {}


class HonestCache(Reference):
    """The reference engine. Its model uses the quantised cache in another way."""

    group: ClassVar[str] = "quantised caches"
    design: ClassVar[str]
    change: ClassVar[tuple[Callable[[Model], None], ...]]

    def make_model(self) -> Model:
        model = super().make_model()
        self.change[0](model)
        return model

    @classmethod
    def add_design(cls, name: str, design: str, change: Callable[[Model], None]) -> None:
        """Register an engine. `change` modifies its model."""
        held = {"__module__": cls.__module__, "design": design, "change": (change,)}
        HONEST_CACHES[f"honest:{name}"] = type(name, (cls,), held, name=f"honest:{name}")


def leave_unturned(model: Model) -> None:
    """Store heads without multiplying them by a Hadamard matrix."""

    def new_memory(right: Callable[..., Memory], **shape: Any) -> Memory:
        memory = right(**shape)
        for store in stores_of(memory):
            put(store, "hadamard_sizes", lambda _right, _layer: (0, 0))
        return memory

    put(model, "new_memory", new_memory)


def keep_queries(model: Model) -> None:
    """Multiply decoded keys by unrounded queries."""

    def attend(
        right: Callable[..., F32], q: F32, k: NDArray[Any], v: NDArray[Any], *rest: Any
    ) -> F32:
        return right(q, decode(k), decode(v), *rest)

    put(model.ops, "flash_attn", attend)
    put(model.ops, "kq", lambda right, q, k: right(q, decode(k)))


design = HonestCache.add_design
design("cache-unturned", "heads are stored without a Hadamard matrix", leave_unturned)
design("cache-queries-kept", "queries are not coded before they meet keys", keep_queries)
