"""The ops of a model with LoRA: the ops of any engine, plus the products of the pairs."""

from typing import Any

from lockstep.engine.adapters.lora import Lora, LowRank
from lockstep.engine.ops.reference import I32, ReferenceOps
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight


class LoraOps:
    """Ops that pass every call on to `ops`, and add LoRA to products and lookups."""

    def __init__(self, ops: ReferenceOps, lora: Lora) -> None:
        self.ops, self.lora = ops, lora

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ops, name)

    def linear(self, x: F32, weight: Weight) -> F32:
        """Apply a linear layer. x: (tokens, inputs), weight: (outputs, inputs) -> (tokens,
        outputs)."""
        out = self.ops.linear(x, weight)
        for pair in self.lora.multiplied.get(weight.name, ()):
            inner = self.ops.linear(x, pair.a)
            out = self.add_delta(out, self.ops.linear(inner, pair.b), pair)
        return out

    def linear_id(self, x: F32, weight: Weight, ids: I32) -> F32:
        """Apply to each row the matrix of the expert chosen for it. x: (tokens, used or 1, inputs),
        weight: (experts, outputs, inputs), ids: (tokens, used) -> (tokens, used, outputs)"""
        out = self.ops.linear_id(x, weight, ids)
        for pair in self.lora.multiplied.get(weight.name, ()):
            inner = self.ops.linear_id(x, pair.a, ids)
            out = self.add_delta(out, self.ops.linear_id(inner, pair.b, ids), pair)
        return out

    def get_rows(self, weight: Weight, ids: I32) -> F32:
        """Look up rows and add the adapters' part to them: (ids, columns)."""
        out = self.ops.get_rows(weight, ids)
        for pair in self.lora.looked_up.get(weight.name, ()):
            out = self.add_delta(out, self.ops.linear(self.ops.get_rows(pair.a, ids), pair.b), pair)
        return out

    def add_delta(self, out: F32, delta: F32, pair: LowRank) -> F32:
        return self.ops.add(out, self.ops.scale(delta, pair.scale))
