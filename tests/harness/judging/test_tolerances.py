"""Limits: each limit covers every honest float32 computation, and no limit covers a small fault.

Honest computations are simulated in float32, with several orders of addition. A small fault is a
relative error of 1e-5. A limit that allows every fault would be useless.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lockstep.engine.ops import experts, gates, norms, products, rotation, softmax
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.near import U
from lockstep.engine.ops.reference import ReferenceOps
from lockstep.engine.ops.roundings import additions
from lockstep.harness.judging import designs, tolerances
from lockstep.harness.judging.compare import mismatch_between
from lockstep.harness.judging.tolerances import Bound, limit_overflow, value_and_bound

F32 = NDArray[np.float32]
Order = Callable[[F32, int], F32]  # arguments: (..., terms), lanes; returns (...)
FAULT = 1e-5
SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.integers(1, 300)
slice_of_cases = settings(derandomize=True, max_examples=40)


def normal(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


GGML, ANY_ORDER = Build(lanes=16), Build(lanes=1, plain=True)


def product(
    size: NDArray[np.float64],
    out: NDArray[Any],
    terms: int,
    lanes: int,
    run: int,
    nonzero: NDArray[Any] | None = None,
) -> Bound:
    """Return the bound of a sum with this number of products."""
    wide = out.astype(np.float64)
    build = Build(lanes=lanes)
    return limit_overflow(products.summed_products(wide, size, terms, build, run, nonzero))[1]


def covers(bound: Bound, truth: NDArray[np.float64], honest: F32) -> bool:
    return mismatch_between(truth, honest, bound.allowed) is None


def scaled(truth: NDArray[np.float64]) -> F32:
    return (truth * (1 + FAULT)).astype(np.float32)


def near_alone(found: tuple[F32, Bound], honest: F32, *others: F32) -> bool:
    """Return True if the limit covers an honest result, but neither a small fault nor the results
    in `others`."""
    truth, bound = found[0].astype(np.float64), found[1]
    return covers(bound, truth, honest) and not any(
        covers(bound, truth, wrong) for wrong in (scaled(truth), *others)
    )


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
    """Add terms like ggml's vector code: first in four registers of lanes, then these in a tree,
    then the remaining terms one by one."""
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
def test_limit_of_a_product_covers_float32_sums(
    order: Order, lanes: int, seed: int, terms: int
) -> None:
    a, b = normal(seed, 6, terms), normal(seed + 1, 6, terms)
    wide = a.astype(np.float64) * b
    truth, honest = wide.sum(axis=-1), order(a * b, lanes)
    bound = product(np.abs(wide).sum(axis=-1), truth.astype(np.float32), terms, lanes, 1)
    assert covers(bound, truth, honest)


@pytest.mark.parametrize(
    ("order", "lanes"), [(one_by_one, 1), (backwards, 1), (pairwise, 1), (in_vectors, 16)]
)
@slice_of_cases
@given(SEEDS, st.integers(0, 40))
def test_bound_of_a_sum_with_zeros_counts_only_the_other_terms(
    order: Order, lanes: int, seed: int, n: int
) -> None:
    a, b = normal(seed, 6, 4096), normal(seed + 1, 6, 4096)
    a[:, np.random.default_rng(seed).permutation(4096)[n:]] = 0
    wide = a.astype(np.float64) * b
    size, truth = np.abs(wide).sum(axis=-1), wide.sum(axis=-1)
    filled = np.count_nonzero(a, axis=-1)
    bound = product(size, truth.astype(np.float32), 4096, lanes, 1, filled)
    assert covers(bound, truth, order(a * b, lanes))
    if n == 8:  # no order of a sum causes an error of 1e-5
        assert not covers(bound, truth, scaled(truth))


@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
@slice_of_cases
@given(SEEDS)
def test_limit_of_a_product_of_64_terms_covers_no_small_fault(lanes: int, seed: int) -> None:
    a, b = normal(seed, 512, 64), normal(seed + 1, 512, 64)
    wide = a.astype(np.float64) * b
    truth = wide.sum(axis=-1)
    bound = product(np.abs(wide).sum(axis=-1), truth.astype(np.float32), 64, lanes, 1)
    assert not covers(bound, truth, scaled(truth))


def blocks_of_integers(seed: int, n: int) -> tuple[NDArray[np.int64], F32]:
    """Return the integer products of 6 rows with n blocks of 32, and the scale of each block."""
    draw = np.random.default_rng(seed)
    whole = draw.integers(-127, 128, (6, n, 32)) * draw.integers(-127, 128, (6, n, 32))
    return whole, draw.uniform(1e-4, 1e-2, (6, n)).astype(np.float16).astype(np.float32) ** 2


@pytest.mark.parametrize("lanes", [1, 8, 16])
@slice_of_cases
@given(SEEDS, st.integers(1, 24))
def test_limit_of_a_block_product_covers_float32_and_no_small_fault(
    lanes: int, seed: int, n: int
) -> None:
    whole, scale = blocks_of_integers(seed, n)
    truth = (whole.sum(axis=-1) * scale.astype(np.float64)).sum(axis=-1)
    size = (np.abs(whole).sum(axis=-1) * scale.astype(np.float64)).sum(axis=-1)
    by_lane = whole.reshape(6, n, lanes, -1).sum(axis=-1).astype(np.float32) * scale[..., None]
    honest = pairwise(np.cumsum(by_lane, axis=1, dtype=np.float32)[:, -1], lanes)
    bound = product(size, truth.astype(np.float32), 32 * n, lanes, 32)
    assert covers(bound, truth, honest)
    assert n > 2 or not covers(bound, truth, scaled(truth))


def test_roundings_are_counted_along_the_longest_path() -> None:
    assert additions(64, 1) == 65  # one for each product, and one for each addition
    # 64 products fill four registers of 16 without a remainder, and 64 partial sums form a tree of
    # six levels
    assert additions(64, 16) == 4 + 0 + 6 + 1
    assert additions(65, 16) == 4 + 1 + 6 + 1
    assert all(additions(n, 1) >= additions(n - 1, 1) for n in range(2, 300))


# --- the other ops --------------------------------------------------------------------------


@slice_of_cases
@given(SEEDS, SIZES)
def test_limit_of_rms_norm_covers_float32_and_no_small_fault(seed: int, width: int) -> None:
    x, weight, eps = normal(seed, 8, width), normal(seed + 1, width), 1e-5
    mean = (x * x).astype(np.float64).mean(axis=-1, keepdims=True).astype(np.float32)
    honest = x * (np.float32(1) / np.sqrt(mean + np.float32(eps))) * weight
    assert near_alone(value_and_bound(norms.rms_norm, x, weight, eps, build=GGML), honest)
    small = (x * np.float32(1e-2)).astype(np.float32)
    out, bound = value_and_bound(norms.rms_norm, small, weight, 1e-5, build=GGML)
    other_eps = ReferenceOps().rms_norm(small, weight, 1e-6)
    assert not covers(bound, out.astype(np.float64), other_eps)


@slice_of_cases
@given(SEEDS, st.integers(0, 500))
def test_limit_of_rope_covers_float32_and_no_small_fault(seed: int, position: int) -> None:
    x = normal(seed, 1, 16, 32)
    angle = (position * 10000.0 ** (-np.arange(16) / 16)).astype(np.float32)

    def turned(angles: NDArray[np.float64]) -> tuple[F32, Bound]:
        cos, sin = np.cos(angles)[None], np.sin(angles)[None]
        params = rotation.RopeParams(32, 10000.0, 1.0, None)
        return value_and_bound(rotation.rope, x, (), params, lambda *_: (cos, sin), build=GGML)

    honest = np.empty_like(x)
    honest[..., 0::2] = x[..., 0::2] * np.cos(angle) - x[..., 1::2] * np.sin(angle)
    honest[..., 1::2] = x[..., 0::2] * np.sin(angle) + x[..., 1::2] * np.cos(angle)
    wide = angle.astype(np.float64)
    assert near_alone(turned(wide), honest, turned(wide + FAULT)[0])


def test_unrotated_element_must_be_exact_to_the_bit() -> None:
    x, positions = normal(1, 3, 2, 8), np.arange(3, dtype=np.int32)
    params = rotation.RopeParams(4, 100.0, 1.0, None, halves=True)
    _, bound = value_and_bound(
        rotation.rope, x, positions, params, rotation.by_recursion, build=GGML
    )
    assert (np.asarray(bound.allowed)[..., :4] > 0).all()
    assert not np.asarray(bound.allowed)[..., 4:].any()


@pytest.mark.parametrize("order", [one_by_one, pairwise, in_vectors])
@slice_of_cases
@given(SEEDS, st.integers(2, 64), st.floats(0.05, 4))
def test_limit_of_soft_max_covers_float32_and_no_small_fault(
    order: Order, seed: int, n: int, scale: float
) -> None:
    x = normal(seed, 5, 6, n) * np.float32(4)
    visible = np.tril(np.ones((6, n), bool), k=n - 6)
    visible[:, 0] = True
    factor = float(np.float32(scale))
    found = value_and_bound(softmax.soft_max, x, factor, visible, build=GGML)
    scores = np.where(visible, x * np.float32(scale), np.float32(-np.inf))
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    honest = powers * (np.float32(1) / order(powers, 4)[..., None])
    assert near_alone(found, honest, ReferenceOps().soft_max(x, factor, None))


@slice_of_cases
@given(SEEDS)
def test_limit_of_swiglu_covers_float32_and_no_small_fault(seed: int) -> None:
    gate, up = normal(seed, 8, 64) * np.float32(8), normal(seed + 1, 8, 64)
    honest = gate / (np.float32(1) + np.exp(-gate)) * up
    assert near_alone(value_and_bound(gates.swiglu, gate, up, build=GGML), honest)


@pytest.mark.parametrize("order", [one_by_one, backwards, pairwise])
@slice_of_cases
@given(SEEDS, st.integers(2, 8))
def test_limit_of_normalise_covers_float32_and_no_small_fault(
    order: Order, seed: int, n: int
) -> None:
    weights = np.random.default_rng(seed).uniform(0.01, 1, (16, n)).astype(np.float32)
    found = value_and_bound(experts.normalise, weights, build=GGML)
    assert near_alone(found, weights / order(weights, 1)[..., None])


@pytest.mark.parametrize("order", [one_by_one, backwards, pairwise])
@slice_of_cases
@given(SEEDS, st.integers(3, 8))
def test_limit_of_expert_sums_covers_any_order_and_no_small_fault(
    order: Order, seed: int, n: int
) -> None:
    x = normal(seed, 8, n, 64)
    found = value_and_bound(experts.sum_experts, x, build=ANY_ORDER)
    honest = order(x.transpose(0, 2, 1), 1)
    assert near_alone(found, honest, ReferenceOps().sum_experts(x[:, 1:]))


@slice_of_cases
@given(SEEDS, st.floats(0.1, 60))
def test_limit_of_other_swiglu_covers_float32_and_no_small_fault(seed: int, spread: float) -> None:
    gate, up = normal(seed, 8, 64) * np.float32(spread), normal(seed + 1, 8, 64)
    half = np.float32(0.5)
    by_tanh = gate * (half + half * np.tanh(half * gate)) * up
    with np.errstate(over="ignore"):
        by_exp2 = gate / (1 + np.exp2(-gate * np.float32(np.log2(np.e)))) * up
    for way, honest in ((designs.swiglu_by_tanh, by_tanh), (designs.swiglu_by_exp2, by_exp2)):
        assert near_alone(value_and_bound(way, gate, up, build=ANY_ORDER), honest)


def test_copied_element_must_be_exact_to_the_bit() -> None:
    x = normal(0, 64)
    assert mismatch_between(x, np.nextafter(x, np.float32(9)), tolerances.EXACT.allowed)


def test_whole_run_gets_exactly_two_noise_floors() -> None:
    bound = tolerances.whole_run(3e-6, 20.0)
    assert float(bound.allowed) == pytest.approx(2 * 3e-6 * 20)
    assert "3.0e-06" in bound.reason


ONES = np.ones((1, 2), np.float32)
OF_ONES: dict[str, Bound] = {
    "a copy": tolerances.EXACT,
    "a product": product(np.ones(2), np.ones(2), 64, 16, 1),
    "a product of blocks": product(np.ones(2), np.ones(2), 64, 16, 32),
    "rms_norm": value_and_bound(norms.rms_norm, ONES, ONES[0], 1e-5, build=GGML)[1],
    "layer_norm": value_and_bound(norms.layer_norm, ONES, ONES[0], ONES[0], 1e-5, build=GGML)[1],
    "soft_max": value_and_bound(softmax.soft_max, ONES, 1.0, None, build=GGML)[1],
    "swiglu": value_and_bound(gates.swiglu, ONES, ONES, build=GGML)[1],
    "soft_cap": value_and_bound(gates.soft_cap, ONES, 30.0, build=GGML)[1],
    "swiglu_by_tanh": value_and_bound(designs.swiglu_by_tanh, ONES, ONES, build=ANY_ORDER)[1],
    "swiglu_by_exp2": value_and_bound(designs.swiglu_by_exp2, ONES, ONES, build=ANY_ORDER)[1],
    "sum_experts": value_and_bound(experts.sum_experts, ONES[None], build=ANY_ORDER)[1],
    "normalise": value_and_bound(experts.normalise, ONES, build=GGML)[1],
    "a whole run": tolerances.whole_run(1e-6, 1.0),
}


@pytest.mark.parametrize("op", OF_ONES)
def test_every_limit_has_a_reason_and_is_within_a_thousand_roundings(op: str) -> None:
    assert len(OF_ONES[op].reason) > 20
    assert float(np.max(OF_ONES[op].allowed)) <= 1000 * U


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm", "soft_max", "gelu", "geglu", "swiglu"])
@pytest.mark.parametrize("ops", [ReferenceOps, Mirror])
def test_formula_gives_the_same_numbers_with_and_without_a_bound(
    op: str, ops: type[ReferenceOps]
) -> None:
    x, up, factor = normal(1, 7, 30) * np.float32(4), normal(2, 7, 30), normal(3, 30)
    formula, args = {
        "rms_norm": (norms.rms_norm, (x, factor, 1e-5)),
        "layer_norm": (norms.layer_norm, (x, factor, factor, 1e-5)),
        "soft_max": (softmax.soft_max, (x, 0.3, x > -2)),
        "gelu": (gates.gelu, (x,)),
        "geglu": (gates.geglu, (x, up)),
        "swiglu": (gates.swiglu, (x, up)),
    }[op]
    value, _ = value_and_bound(formula, *args, build=replace(ops().build, bounds=True))
    assert value.tobytes() == getattr(ops(), op)(*args).tobytes()
