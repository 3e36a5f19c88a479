"""Writes every token of a prompt into one cell: only the last one's key and value survive."""

from engine.kv_cache import KvCache
from engine.model import Model
from engine.quants.base import F32
from harness.mutants.base import Mutant


class OneCursor(KvCache):
    def store(self, layer: int, cells: slice, k: F32, v: F32) -> None:
        # the cursor advances after the batch, so all its tokens landed where it stood
        self.keys[layer, cells] = 0
        self.values[layer, cells] = 0
        super().store(layer, slice(cells.start, cells.start + 1), k[-1:], v[-1:])


class LastOnly(Model):
    def new_cache(self) -> KvCache:
        cache = super().new_cache()
        cache.__class__ = OneCursor
        return cache


class CacheKeepsLast(Mutant, name="mutant:cache-keeps-last"):
    mistake = "the cache cursor keeps only the last prompt token"
    site = "k_cache"

    def make_model(self) -> Model:
        model = super().make_model()
        model.__class__ = LastOnly
        return model
