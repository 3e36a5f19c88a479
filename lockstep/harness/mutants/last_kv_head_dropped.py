"""Loops over one KV head too few: the heads that the last one serves get nothing from it."""

from typing import Any

from numpy.typing import NDArray

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.near import F64
from lockstep.harness.mutants.base import Mutant


class OneHeadShort(Mirror):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.flash = None  # which has no place for the mistake

    def spread(self, kv: NDArray[Any], n_head: int) -> F64:
        wide = super().spread(kv, n_head)
        wide[-(n_head // kv.shape[1]) :] = 0
        return wide


class LastKvHeadDropped(Mutant, name="mutant:last-kv-head-dropped"):
    ops = OneHeadShort
    mistake = "the last KV head is dropped"
    group = "attention"
    effect = "a share of the heads is silent; the text wanders"
    first_of_all = True
    site = "kq"
