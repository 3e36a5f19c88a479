"""Gives query head h the KV head h modulo the number of KV heads, instead of a run each."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.ops.mirror import Mirror
from engine.ops.reference import F64, Bools, Reference
from engine.quants.base import F32
from harness.mutants.base import Mutant


class Modulo(Mirror):
    def spread(self, kv: NDArray[Any], n_head: int) -> F64:
        wide = kv.astype(np.float64).transpose(1, 0, 2)
        return np.tile(wide, (n_head // kv.shape[1], 1, 1))

    def flash_attn(
        self, q: F32, k: NDArray[Any], v: NDArray[Any], scale: float, visible: Bools
    ) -> F32:
        return Reference.flash_attn(self, q, k, v, scale, visible)


class KvHeadModulo(Mutant, name="mutant:kv-head-modulo"):
    ops = Modulo
    mistake = "query heads mapped to KV heads by modulo"
    site = "kq"
