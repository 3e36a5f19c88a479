"""Engines that add LoRA files correctly, but not in llama.cpp's way."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np

from lockstep.engine.adapters.lora import LOOKED_UP, Lora, LowRank
from lockstep.engine.adapters.ops import LoraOps
from lockstep.engine.model import Model
from lockstep.engine.ops.reference import ReferenceOps
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.reference import Reference

HONEST_ADAPTERS: dict[str, "type[HonestAdapter]"] = {}


class HonestAdapter(Reference):
    """The reference engine. It converts the model's adapters to another form after reading."""

    group: ClassVar[str] = "honest adapters"
    design: ClassVar[str]
    change: ClassVar[tuple[Callable[[Model], None], ...]]

    def make_model(self) -> Model:
        model = super().make_model()
        if model.lora is not None:
            self.change[0](model)
        return model

    @classmethod
    def add_design(cls, name: str, design: str, change: Callable[[Model], None]) -> None:
        """Register an engine. `change` converts the model's adapter pairs to another form."""
        held = {"__module__": cls.__module__, "design": design, "change": (change,)}
        found = type(name, (cls,), held, name=f"honest:{name}")
        HONEST_ADAPTERS[f"honest:{name}"] = found


def product_of(pair: LowRank) -> Any:
    """Return scale * B A in float64: (outputs, inputs), or a stack of them."""
    return pair.scale * (pair.b.values().astype(np.float64) @ pair.a.values().astype(np.float64))


def turn_pair(pair: LowRank) -> LowRank:
    """Transpose an embedding's pair so that its product has the embedding's shape."""
    return replace(pair, a=in_f32(pair.b, pair.b.values().T), b=pair.a)


def merge_into(kind: str) -> Callable[[Model], None]:
    """Return a change that adds all pairs to the weights and stores them in the format `kind`."""

    def merge(model: Model) -> None:
        lora, weights = cast(Lora, model.lora), model.graph.tensors.weights
        target = WeightFormat.member(kind)
        for name, pairs in (*lora.multiplied.items(), *lora.looked_up.items()):
            weight = weights.tensor(name, weights.file.tensors[name].shape)
            total = weight.values().astype(np.float64)
            for pair in pairs:
                total += product_of(turn_pair(pair) if name == LOOKED_UP else pair)
            raw = total.astype(np.dtype(target.layout).base).view(np.uint8).reshape(-1)
            weights.formats[name] = target
            weights.found[name] = Weight(name, target, weight.shape, raw)
        lora.multiplied.clear()
        lora.looked_up.clear()

    return merge


def reverse_files(model: Model) -> None:
    for pairs in cast(Lora, model.lora).multiplied.values():
        pairs.reverse()


def fold_scale(model: Model) -> None:
    """Multiply each matrix A by the adapter's scale once, after reading."""
    for pairs in cast(Lora, model.lora).multiplied.values():
        pairs[:] = [
            replace(pair, a=in_f32(pair.a, pair.a.values() * np.float32(pair.scale)), scale=1.0)
            for pair in pairs
        ]


def in_f32(weight: Weight, values: F32) -> Weight:
    raw = np.ascontiguousarray(values, np.float32).view(np.uint8).reshape(-1)
    return Weight(weight.name, WeightFormat.member("F32"), values.shape, raw)


class WideOps(LoraOps):
    """Ops that add all pairs in float64 and round the sum once."""

    def linear(self, x: F32, weight: Weight) -> F32:
        out = self.ops.linear(x, weight)
        pairs: Sequence[LowRank] = self.lora.multiplied.get(weight.name, ())
        if not pairs:
            return out
        total = sum(x.astype(np.float64) @ product_of(pair).T for pair in pairs)
        return np.asarray(out + total, np.float32)


def compute_widely(model: Model) -> None:
    """Compute with the product of each pair, in float64."""
    right, lora = model.compute, cast(Lora, model.lora)

    def compute(ubatch: Any, views: Any, probe: Any, ops: ReferenceOps | None = None) -> F32:
        model.lora = None
        wide = cast(ReferenceOps, WideOps(ops or model.ops, lora))
        try:
            return right(ubatch, views, probe, wide)
        finally:
            model.lora = lora

    setattr(model, "compute", compute)  # noqa: B010 - a method of this model alone


design = HonestAdapter.add_design
design("lora-merged-f32", "pairs are added to the weights, in F32", merge_into("F32"))
design("lora-merged-f16", "pairs are added to the weights, in F16", merge_into("F16"))
design("lora-files-reversed", "the last file is added first", reverse_files)
design("lora-scale-in-a", "A holds the scale", fold_scale)
design("lora-wide", "B A is one matrix, and its product is added in float64", compute_widely)
