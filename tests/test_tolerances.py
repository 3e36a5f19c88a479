"""Limits: each covers every honest float32 way to compute, and none covers a small fault.

An honest way is simulated in float32, in several orders of addition. "Small" is a relative error of
1e-5: a limit that catches nothing is no limit.
"""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.ops.products import additions
from engine.ops.reference import Reference
from harness import tolerances
from harness.compare import mismatch_between
from harness.tolerances import Bound, U

F32 = NDArray[np.float32]
Order = Callable[[F32, int], F32]  # (..., terms), lanes -> (...)
FAULT = 1e-5
SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.integers(1, 300)
slice_of_cases = settings(derandomize=True, max_examples=40)


def normal(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def covers(bound: Bound, truth: NDArray[np.float64], honest: F32) -> bool:
    return mismatch_between(truth, honest, bound.allowed) is None


def scaled(truth: NDArray[np.float64]) -> F32:
    return (truth * (1 + FAULT)).astype(np.float32)


# --- sums in float32, each addition rounded -------------------------------------------------


def one_by_one(products: F32, lanes: int) -> F32:
    return np.cumsum(products, axis=-1, dtype=np.float32)[..., -1]


def backwards(products: F32, lanes: int) -> F32:
    return one_by_one(products[..., ::-1], lanes)


def pairwise(products: F32, lanes: int) -> F32:
    while products.shape[-1] > 1:
        if products.shape[-1] % 2:
            pad = np.zeros((*products.shape[:-1], 1), np.float32)
            products = np.concatenate([products, pad], axis=-1)
        products = products[..., 0::2] + products[..., 1::2]
    return products[..., 0]


def in_vectors(products: F32, lanes: int) -> F32:
    """As ggml's vector code: four registers of lanes, a tree, then what is left one by one."""
    step = 4 * lanes
    whole = products.shape[-1] // step * step
    parts = products[..., :whole].reshape(*products.shape[:-1], -1, step)
    total = np.zeros(products.shape[:-1], np.float32)
    if whole:
        total = pairwise(np.cumsum(parts, axis=-2, dtype=np.float32)[..., -1, :], lanes)
    for i in range(whole, products.shape[-1]):
        total = total + products[..., i]
    return total


ORDERS: dict[str, tuple[Order, tuple[int, ...]]] = {
    "one by one": (one_by_one, (1,)),
    "backwards": (backwards, (1,)),
    "pairwise": (pairwise, (1,)),
    "in vectors": (in_vectors, (4, 8, 16)),
}


@pytest.mark.parametrize(
    ("order", "lanes"),
    [(order, n) for order, lanes in ORDERS.values() for n in lanes],
    ids=[f"{name}, {n} lanes" for name, (_, lanes) in ORDERS.items() for n in lanes],
)
@slice_of_cases
@given(SEEDS, SIZES)
def test_a_product_covers_float32_sums(order: Order, lanes: int, seed: int, terms: int) -> None:
    a, b = normal(seed, 6, terms), normal(seed + 1, 6, terms)
    wide = a.astype(np.float64) * b
    truth, honest = wide.sum(axis=-1), order(a * b, lanes)
    bound = tolerances.product(np.abs(wide).sum(axis=-1), truth.astype(np.float32), terms, lanes, 1)
    assert covers(bound, truth, honest)


@pytest.mark.parametrize(
    ("order", "lanes"), [(one_by_one, 1), (backwards, 1), (pairwise, 1), (in_vectors, 16)]
)
@slice_of_cases
@given(SEEDS, st.integers(0, 40))
def test_of_a_sum_with_zeros_only_the_other_terms_are_rounded(
    order: Order, lanes: int, seed: int, n: int
) -> None:
    a, b = normal(seed, 6, 4096), normal(seed + 1, 6, 4096)
    a[:, np.random.default_rng(seed).permutation(4096)[n:]] = 0
    wide = a.astype(np.float64) * b
    size, truth = np.abs(wide).sum(axis=-1), wide.sum(axis=-1)
    filled = np.count_nonzero(a, axis=-1)
    bound = tolerances.product(size, truth.astype(np.float32), 4096, lanes, 1, filled)
    assert covers(bound, truth, order(a * b, lanes))
    if n == 8:  # a share of 1e-5 cannot be the order of a sum
        assert not covers(bound, truth, scaled(truth))


@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
@slice_of_cases
@given(SEEDS)
def test_a_product_of_64_terms_does_not_cover_a_small_fault(lanes: int, seed: int) -> None:
    a, b = normal(seed, 512, 64), normal(seed + 1, 512, 64)
    wide = a.astype(np.float64) * b
    truth = wide.sum(axis=-1)
    bound = tolerances.product(np.abs(wide).sum(axis=-1), truth.astype(np.float32), 64, lanes, 1)
    assert not covers(bound, truth, scaled(truth))


def blocks_of_integers(seed: int, n: int) -> tuple[NDArray[np.int64], F32]:
    """Integer products of 6 rows of n blocks of 32, and the scale of each block."""
    draw = np.random.default_rng(seed)
    whole = draw.integers(-127, 128, (6, n, 32)) * draw.integers(-127, 128, (6, n, 32))
    return whole, draw.uniform(1e-4, 1e-2, (6, n)).astype(np.float16).astype(np.float32) ** 2


@pytest.mark.parametrize("lanes", [1, 8, 16])
@slice_of_cases
@given(SEEDS, st.integers(1, 24))
def test_a_product_of_blocks_covers_float32_sums_over_blocks(lanes: int, seed: int, n: int) -> None:
    whole, scale = blocks_of_integers(seed, n)
    truth = (whole.sum(axis=-1) * scale.astype(np.float64)).sum(axis=-1)
    size = (np.abs(whole).sum(axis=-1) * scale.astype(np.float64)).sum(axis=-1)
    by_lane = whole.reshape(6, n, lanes, -1).sum(axis=-1).astype(np.float32) * scale[..., None]
    honest = pairwise(np.cumsum(by_lane, axis=1, dtype=np.float32)[:, -1], lanes)
    bound = tolerances.product(size, truth.astype(np.float32), 32 * n, lanes, 32)
    assert covers(bound, truth, honest)


@slice_of_cases
@given(SEEDS)
def test_a_product_of_blocks_does_not_cover_a_small_fault(seed: int) -> None:
    whole, scale = blocks_of_integers(seed, 2)
    truth = (whole.sum(axis=-1) * scale.astype(np.float64)).sum(axis=-1)
    size = (np.abs(whole).sum(axis=-1) * scale.astype(np.float64)).sum(axis=-1)
    bound = tolerances.product(size, truth.astype(np.float32), 64, 16, 32)
    assert not covers(bound, truth, scaled(truth))


def test_roundings_are_counted_along_the_longest_path() -> None:
    assert additions(64, 1) == 65
    assert additions(64, 16) == 4 + 0 + 6 + 1
    assert additions(65, 16) == 4 + 1 + 6 + 1
    assert all(additions(n, 1) >= additions(n - 1, 1) for n in range(2, 300))


# --- the other ops --------------------------------------------------------------------------


@slice_of_cases
@given(SEEDS, SIZES)
def test_rms_norm_covers_float32_and_no_small_fault(seed: int, width: int) -> None:
    x, weight, eps = normal(seed, 8, width), normal(seed + 1, width), 1e-5
    ops = Reference()
    out = ops.rms_norm(x, weight, eps)
    mean = (x * x).astype(np.float64).mean(axis=-1, keepdims=True).astype(np.float32)
    honest = x * (np.float32(1) / np.sqrt(mean + np.float32(eps))) * weight
    truth, bound = out.astype(np.float64), tolerances.rms_norm(x, out)
    assert covers(bound, truth, honest)
    assert not covers(bound, truth, scaled(truth))
    small = (x * np.float32(1e-2)).astype(np.float32)
    truth = ops.rms_norm(small, weight, 1e-5).astype(np.float64)
    other_eps = ops.rms_norm(small, weight, 1e-6)
    assert not covers(tolerances.rms_norm(small, truth.astype(np.float32)), truth, other_eps)


@slice_of_cases
@given(SEEDS, st.integers(0, 500))
def test_rope_covers_float32_and_no_small_fault(seed: int, position: int) -> None:
    x = normal(seed, 16, 32)
    angle = (position * 10000.0 ** (-np.arange(16) / 16)).astype(np.float32)
    cos, sin = np.cos(angle.astype(np.float64)), np.sin(angle.astype(np.float64))
    even, odd = x[:, 0::2].astype(np.float64), x[:, 1::2].astype(np.float64)
    truth = even * cos - odd * sin
    honest = x[:, 0::2] * np.cos(angle) - x[:, 1::2] * np.sin(angle)
    bound = tolerances.rope(np.abs(even * cos) + np.abs(odd * sin))
    assert covers(bound, truth, honest)
    assert not covers(bound, truth, scaled(truth))
    turned = angle.astype(np.float64) + FAULT
    assert not covers(
        bound, truth, (even * np.cos(turned) - odd * np.sin(turned)).astype(np.float32)
    )


@pytest.mark.parametrize("order", [one_by_one, pairwise, in_vectors])
@slice_of_cases
@given(SEEDS, st.integers(2, 64), st.floats(0.05, 4))
def test_soft_max_covers_float32_and_no_small_fault(
    order: Order, seed: int, n: int, scale: float
) -> None:
    x = normal(seed, 5, 6, n) * np.float32(4)
    visible = np.tril(np.ones((6, n), bool), k=n - 6)
    visible[:, 0] = True
    factor = float(np.float32(scale))
    out = Reference().soft_max(x, factor, visible)
    scores = np.where(visible, x * np.float32(scale), np.float32(-np.inf))
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    honest = powers * (np.float32(1) / order(powers, 4)[..., None])
    truth, bound = out.astype(np.float64), tolerances.soft_max(x, out, factor, visible)
    assert covers(bound, truth, honest)
    assert not covers(bound, truth, scaled(truth))
    assert not covers(bound, truth, Reference().soft_max(x, factor, None))


@slice_of_cases
@given(SEEDS)
def test_swiglu_covers_float32_and_no_small_fault(seed: int) -> None:
    gate, up = normal(seed, 8, 64) * np.float32(8), normal(seed + 1, 8, 64)
    out = Reference().swiglu(gate, up)
    honest = gate / (np.float32(1) + np.exp(-gate)) * up
    truth, bound = out.astype(np.float64), tolerances.swiglu(out, up)
    assert covers(bound, truth, honest)
    assert not covers(bound, truth, scaled(truth))


@pytest.mark.parametrize("order", [one_by_one, backwards, pairwise])
@slice_of_cases
@given(SEEDS, st.integers(2, 8))
def test_normalise_covers_float32_and_no_small_fault(order: Order, seed: int, n: int) -> None:
    weights = np.random.default_rng(seed).uniform(0.01, 1, (16, n)).astype(np.float32)
    out = Reference().normalise(weights)
    truth, bound = out.astype(np.float64), tolerances.normalise(out)
    assert covers(bound, truth, weights / order(weights, 1)[..., None])
    assert not covers(bound, truth, scaled(truth))


@pytest.mark.parametrize("order", [one_by_one, backwards, pairwise])
@slice_of_cases
@given(SEEDS, st.integers(3, 8))
def test_a_sum_of_experts_covers_any_order_and_no_small_fault(
    order: Order, seed: int, n: int
) -> None:
    x = normal(seed, 8, n, 64)
    out, size = Reference().sum_experts(x), np.abs(x, dtype=np.float64).sum(axis=1)
    truth, bound = out.astype(np.float64), tolerances.sum_experts(size, out, n)
    assert covers(bound, truth, order(x.transpose(0, 2, 1), 1))
    assert not covers(bound, truth, scaled(truth))
    assert not covers(bound, truth, Reference().sum_experts(x[:, 1:]))


@slice_of_cases
@given(SEEDS, st.floats(0.1, 60))
def test_swiglu_by_other_formulas_covers_float32_and_no_small_fault(
    seed: int, spread: float
) -> None:
    gate, up = normal(seed, 8, 64) * np.float32(spread), normal(seed + 1, 8, 64)
    out, half = Reference().swiglu(gate, up), np.float32(0.5)
    truth = out.astype(np.float64)
    by_tanh = gate * (half + half * np.tanh(half * gate)) * up
    with np.errstate(over="ignore"):
        by_exp2 = gate / (1 + np.exp2(-gate * np.float32(np.log2(np.e)))) * up
    bounds = tolerances.swiglu_by_tanh(gate, up, out), tolerances.swiglu_by_exp2(gate, up, out)
    for bound, honest in zip(bounds, (by_tanh, by_exp2), strict=True):
        assert covers(bound, truth, honest)
        assert not covers(bound, truth, scaled(truth))


def test_a_copy_may_not_move_by_one_bit() -> None:
    x = normal(0, 64)
    assert mismatch_between(x, np.nextafter(x, np.float32(9)), tolerances.EXACT.allowed)


def test_a_whole_run_gets_two_noise_floors_and_no_more() -> None:
    bound = tolerances.whole_run(3e-6, 20.0)
    assert float(bound.allowed) == pytest.approx(2 * 3e-6 * 20)
    assert "3.0e-06" in bound.reason


@pytest.mark.parametrize(
    "bound",
    [
        tolerances.EXACT,
        tolerances.product(np.ones(2), np.ones(2, np.float32), 64, 16, 1),
        tolerances.product(np.ones(2), np.ones(2, np.float32), 64, 16, 32),
        tolerances.rms_norm(np.ones(2, np.float32), np.ones(2, np.float32)),
        tolerances.rope(np.ones(2)),
        tolerances.soft_max(np.ones((1, 2), np.float32), np.ones((1, 2), np.float32), 1.0, None),
        tolerances.swiglu(np.ones(2, np.float32), np.ones(2, np.float32)),
        tolerances.swiglu_by_tanh(*[np.ones(2, np.float32)] * 3),
        tolerances.swiglu_by_exp2(*[np.ones(2, np.float32)] * 3),
        tolerances.sum_experts(np.ones(2), np.ones(2, np.float32), 8),
        tolerances.normalise(np.ones(2, np.float32)),
        tolerances.flash_attn(np.ones(2, np.float32), np.zeros(2)),
        tolerances.whole_run(1e-6, 1.0),
    ],
    ids=lambda bound: bound.reason[:40],
)
def test_every_limit_has_a_reason_and_is_within_a_thousand_roundings(bound: Bound) -> None:
    assert len(bound.reason) > 20
    assert float(np.max(bound.allowed)) <= 1000 * U
