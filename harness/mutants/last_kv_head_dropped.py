"""Loops over one KV head too few: the heads that the last one serves get nothing from it."""

from typing import Any

from numpy.typing import NDArray

from engine.ops.mirror import Mirror
from engine.ops.reference import F64, Bools, Reference
from engine.quants.base import F32
from harness.mutants.base import Mutant


class OneHeadShort(Mirror):
    def spread(self, kv: NDArray[Any], n_head: int) -> F64:
        wide = super().spread(kv, n_head)
        wide[-(n_head // kv.shape[1]) :] = 0
        return wide

    def flash_attn(
        self, q: F32, k: NDArray[Any], v: NDArray[Any], scale: float, visible: Bools
    ) -> F32:
        return Reference.flash_attn(self, q, k, v, scale, visible)


class LastKvHeadDropped(Mutant, name="mutant:last-kv-head-dropped"):
    ops = OneHeadShort
    mistake = "the last KV head is dropped"
    site = "kq"
