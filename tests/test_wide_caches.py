"""An engine whose KV cache is in F16 may leave queries and weights of attention in float32.

llama.cpp converts them to the cache's type first, where it has no flash attention.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.ops.mirror import Mirror
from engine.ops.reference import Reference as ReferenceOps
from engine.quants.base import F32
from harness.judge import conforms
from harness.noise import carried
from harness.records import EXACT
from tests.models import builtin
from tests.test_honest_designs import guilty, judge, names, normal, with_ops


class WideOnCache(Mirror):
    def kq(self, q: F32, k: NDArray[Any]) -> F32:
        return ReferenceOps().kq(q, k)

    def kqv(self, p: F32, v: NDArray[Any]) -> F32:
        return ReferenceOps().kqv(p, v)


class ScaledOnCache(WideOnCache):
    def kq(self, q: F32, k: NDArray[Any]) -> F32:
        return super().kq(q, k) * np.float32(1 + 1e-5)


def test_what_meets_an_f16_cache_may_stay_in_float32() -> None:
    q, k, p = normal(6, 5, 4, 64), normal(7, 9, 2, 64), np.abs(normal(8, 4, 5, 9)) / 9
    cache = k.astype(np.float16)
    for op, x in (("kq", q), ("kqv", p)):
        ops, plain = judge(), ReferenceOps()
        truth, shown = carried(getattr(ops, op)(x, cache)), getattr(plain, op)(x, cache)
        assert not conforms(shown, truth, truth.bound, ())
        assert conforms(shown, truth, truth.bound, truth.others())
        nudged = x * np.float32(1 + 2e-5)
        for wrong in (getattr(plain, op)(nudged, cache), getattr(plain, op)(x, k), shown[::-1]):
            assert not conforms(wrong, truth, truth.bound, truth.others())


def test_a_wide_engine_on_an_f16_cache_is_not_accused(tmp_path: Path) -> None:
    settings = replace(EXACT, type_k="F16", type_v="F16")
    assert not settings.flash_attn
    path = builtin("f32", tmp_path)
    assert guilty(path, with_ops(WideOnCache), settings) == []
    assert names(guilty(path, with_ops(ScaledOnCache), settings)) == {"kq"}
