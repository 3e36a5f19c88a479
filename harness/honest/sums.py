"""Honest engines that add the terms of products and other sums in another order or precision."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.ops.attention import like
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.products import LESS_OFFSET, without
from lockstep.engine.ops.reference import Bools
from lockstep.engine.ops.reference import ReferenceOps as Ops
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.honest.base import HonestEngine

ONE = np.float32(1)


class Float64(HonestEngine, name="honest:float64"):
    """Computes everything in float64, like numpy code without explicit types."""

    design = "float64 throughout, activations as they are"

    def make_ops(self) -> Ops:
        return Ops()


def sum_in_order(terms: F32) -> F32:
    """Sum over the last axis by one float32 addition after the other."""
    return np.cumsum(terms, axis=-1, dtype=np.float32)[..., -1]


class OneByOne(Mirror):
    """Ops that add the terms of every sum one after the other in float32: squares in norms,
    exponentials in softmax, products."""

    def linear(self, x: F32, weight: Weight) -> F32:
        out = np.empty((len(x), weight.shape[0]), np.float32)
        values = weight.values()
        for row, token in zip(out, x, strict=True):
            row[:] = sum_in_order(token * values)
        return out

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        mean = sum_in_order(x * x)[..., None] / np.float32(x.shape[-1])
        out: F32 = ONE / np.sqrt(mean + np.float32(eps)) * x * weight
        return out

    def kq(self, q: F32, k: NDArray[Any]) -> F32:
        keys = self.spread(k, q.shape[1]).astype(np.float32)  # (heads, cells, dim)
        queries = like(q, k).transpose(1, 0, 2)
        return np.stack([sum_in_order(queries[:, t, None] * keys) for t in range(len(q))], axis=1)

    def soft_max(self, x: F32, scale: float, visible: Bools | None) -> F32:
        scores = x * np.float32(scale)
        if visible is not None:
            scores = np.where(visible, scores, np.float32(-np.inf))
        largest = scores.max(axis=-1, keepdims=True)
        powers = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
        total = sum_in_order(powers)[..., None]
        out: F32 = powers / np.where(total == 0, ONE, total)
        return out

    def kqv(self, p: F32, v: NDArray[Any]) -> F32:
        values = self.spread(v, p.shape[0]).astype(np.float32).transpose(0, 2, 1)
        rows = like(p, v).transpose(1, 0, 2)  # (tokens, heads, cells)
        return np.stack([sum_in_order(row[:, None] * values).reshape(-1) for row in rows])


# used by llama2.c, and by the first version of most engines
HonestEngine.add_design(
    "sums-one-by-one", "float32 sums without vectors, activations as they are", ops=OneByOne
)


class CodesAndOffsets(Mirror):
    """Ops that multiply the codes of quantised weights and their offsets separately, and add both
    sums."""

    def linear(self, x: F32, weight: Weight) -> F32:
        codes = LESS_OFFSET.get(weight.format.name)
        if codes is None:
            return super().linear(x, weight)
        below = without(weight, slice(0, weight.shape[0]), *codes)  # the values of codes of zero
        above = weight.values() - below
        out = np.empty((len(x), weight.shape[0]), np.float32)
        for row, token in zip(out, x, strict=True):
            row[:] = sum_in_order(token * above) + sum_in_order(token * below)
        return out


# used by llama.cpp's Metal kernels: d * (sum of q * x - 8 * sum of x)
HonestEngine.add_design(
    "offsets-apart",
    "codes and offsets of weights added up separately, activations as they are",
    ops=CodesAndOffsets,
    shows_on="q4_0",
)
