"""Gives query head h the KV head h modulo the number of KV heads, instead of a run each."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.near import F64
from lockstep.harness.mutants.base import Mutant


class Modulo(Mirror):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.flash = None  # which has no place for the mistake

    def spread(self, kv: NDArray[Any], n_head: int) -> F64:
        wide = kv.astype(np.float64).transpose(1, 0, 2)
        return np.tile(wide, (n_head // kv.shape[1], 1, 1))


class KvHeadModulo(Mutant, name="mutant:kv-head-modulo"):
    ops = Modulo
    mistake = "query heads mapped to KV heads by modulo"
    group = "attention"
    effect = "fluent nonsense in models with fewer KV heads"
    first_of_all = True
    site = "kq"
