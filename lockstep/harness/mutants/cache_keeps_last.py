"""Writes every token of a prompt into one cell: only the last one's key and value survive."""

from typing import Any

from lockstep.engine.memory.attention import Attention
from lockstep.engine.memory.base import Memory
from lockstep.engine.memory.store import Index, Store
from lockstep.engine.model import Model
from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.base import Mutant


class OneCursor(Store):
    def write(self, layer: int, cells: Index, k: F32, v: F32) -> None:
        # the cursor advances after the batch, so all its tokens landed where it stood
        self.keys[layer][cells] = 0
        self.values[layer][cells] = 0
        super().write(layer, cells[:1], k[-1:], v[-1:])


class LastOnly(Model):
    def new_memory(self, **shape: Any) -> Memory:
        memory = super().new_memory(**shape)
        if isinstance(memory, Attention):
            memory.store.__class__ = OneCursor
        return memory


class CacheKeepsLast(Mutant, name="mutant:cache-keeps-last"):
    mistake = "the cache cursor keeps only the last prompt token"
    group = "cache"
    effect = "after the first batch only its last token is remembered"
    first_of_all = True
    site = "k_cache"

    def make_model(self) -> Model:
        model = super().make_model()
        model.__class__ = LastOnly
        return model
