"""Differences of newer x86 builds of llama.cpp: flash attention in halves, matrices for AMX."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.activations.base import AMX, HALVES
from lockstep.engine.ops import products
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.flash_mirror import STEP
from lockstep.engine.ops.ggml.attention import call, flash_attn_ext
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.weights import Weight
from tests.shadow_nodes import normal

CELLS, REST = 20, 96
F16 = NDArray[np.float16]
Add = Callable[[F16, F16, np.float32], F16]  # arguments: the sum so far, values, their weight

Q = normal(1, 1, 1, STEP + REST) / 4
Q[..., 4:] = 0  # scores with small errors, because a radius of a whole step would hide everything
K, V = (normal(seed, CELLS, 1, STEP + REST).astype(np.float16) for seed in (2, 3))


def in_floats(y: F16, v: F16, by: np.float32) -> F16:
    return (y.astype(np.float32) + v.astype(np.float32) * by).astype(np.float16)


def fused(y: F16, v: F16, by: np.float32) -> F16:
    """Return y + v * by for halves, rounded once (fused)."""
    return (y.astype(np.float64) + v.astype(np.float64) * np.float16(by)).astype(np.float16)


def first_fused(y: F16, v: F16, by: np.float32) -> F16:
    return np.concatenate([fused(y[:STEP], v[:STEP], by), in_floats(y[STEP:], v[STEP:], by)])


def unfused(y: F16, v: F16, by: np.float32) -> F16:
    return np.concatenate([y[:STEP] + v[:STEP] * np.float16(by), in_floats(y, v, by)[STEP:]])


def attended(add: Add) -> F32:
    """Return the attention of one token, computed key by key with an online softmax."""
    q, zero = Q[0, 0].astype(np.float16).astype(np.float32), np.zeros(STEP + REST, np.float16)
    y, total, top = zero, np.float32(0), np.float32(-np.inf)
    for key, value in zip(K[:, 0], V[:, 0], strict=True):
        score = np.float32(q @ key.astype(np.float32))
        weight = np.float32(1)
        if score > top:
            less = np.exp(top - score)
            y, total, top = add(zero, y, less), total * less, score
        else:
            weight = np.exp(score - top)
        y, total = add(y, value, weight), total + weight
    return y.astype(np.float32) / total


def fits(found: F32, *more: str) -> NDArray[np.bool_]:
    visible = np.ones((1, CELLS), np.bool_)
    node = call(Q, K, V, 1.0, visible, 0.0, None)
    with np.errstate(invalid="ignore"):
        expected = flash_attn_ext(node, Build(lanes=16, generic=more))
    return np.abs(expected.value - found).reshape(-1) <= np.reshape(expected.allowed, -1)


def test_sums_in_halves_fit_only_a_build_that_uses_them() -> None:
    assert fits(attended(first_fused), HALVES).all()
    assert not fits(attended(first_fused))[:STEP].all()
    assert fits(attended(in_floats)).all()
    assert not fits(attended(in_floats), HALVES)[:STEP].all()


def test_columns_after_whole_steps_are_added_in_floats() -> None:
    assert not fits(attended(fused), HALVES)[STEP:].all()


def test_product_of_halves_rounded_before_addition_does_not_fit() -> None:
    assert not fits(attended(unfused), HALVES)[:STEP].all()


def matrix(name: str, rows: int = 32, columns: int = 64) -> Weight:
    raw = normal(4, rows, columns).astype(np.float16)
    return Weight(name, WeightFormat.member("F16"), raw.shape, raw.reshape(-1).view(np.uint8))


@pytest.mark.parametrize(
    ("weight", "whole"),
    [
        (matrix("blk.0.attn_q.weight"), True),
        (matrix("blk.0.attn_q.weight", rows=33), False),
        (matrix("blk.0.attn_q.weight", columns=40), False),
        (matrix("cache_k_l0 (view)"), False),
        (matrix("blk.0.ffn_up_exps.weight"), False),
        (matrix("blk.0.ffn_up_chexps.weight"), False),
        (matrix("blk.0.ffn_up_shexp.weight"), True),
    ],
    ids=["a matrix", "odd rows", "odd columns", "a cache", "experts", "chunks", "a shared one"],
)
def test_activations_stay_unconverted_for_amx_matrices(weight: Weight, whole: bool) -> None:
    x = normal(5, 3, weight.shape[1])
    halved = x.astype(np.float16).astype(np.float64)
    found = products.convert_activations(x, weight, Build(lanes=16, generic=(AMX,))).values
    np.testing.assert_array_equal(found, x if whole else halved)
    np.testing.assert_array_equal(
        products.convert_activations(x, weight, Build(lanes=16)).values, halved
    )


def test_matrix_excluded_by_the_build_is_not_laid_out() -> None:
    """BitNet's graph multiplies by the token embeddings, which are not laid out for AMX."""
    weight, x = matrix("token_embd.weight"), normal(5, 3, 64)
    named = Build(lanes=16, generic=(AMX, "token_embd.weight"))
    halved = x.astype(np.float16).astype(np.float64)
    np.testing.assert_array_equal(products.convert_activations(x, weight, named).values, halved)
    np.testing.assert_array_equal(
        products.convert_activations(x, weight, Build(lanes=16, generic=(AMX,))).values, x
    )


def test_conversion_for_one_matrix_is_not_reused_for_another() -> None:
    ops, x = Mirror(generic=(AMX,)), normal(5, 3, 64)
    first, second = matrix("blk.0.attn_q.weight"), matrix("blk.0.attn_k.weight", rows=33)
    assert not np.array_equal(ops.activations(x, first), ops.activations(x, second))
    np.testing.assert_array_equal(ops.activations(x, first), x)
