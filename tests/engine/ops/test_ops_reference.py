"""Each op of the reference against plain Python loops over exact sums."""

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from lockstep.engine.ops.experts import MOE_SUM_MIN
from lockstep.engine.ops.reference import ReferenceOps, RopeParams
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.registry import import_members
from lockstep.engine.weights import Weight
from lockstep.harness.synth.generator import stream, tensor_bytes

OPS = ReferenceOps()
U = 2.0**-24
SUBNORMAL = 2.0**-150  # half the smallest float32: what one rounding may cost near zero


def floats(seed: int, *shape: int, size: float = 1.0) -> F32:
    return (Generator(Philox(seed)).standard_normal(shape) * size).astype(np.float32)


def weight_of(type_name: str, shape: tuple[int, ...], seed: int = 0) -> Weight:
    """A seeded matrix or stack of matrices; the last of `shape` is a row."""
    import_members("lockstep.engine.quants")
    n = math.prod(shape)
    raw = b"".join(tensor_bytes(stream(seed, type_name), type_name, n, shape[-1] ** -0.5))
    return Weight("w", WeightFormat.named(type_name), shape, np.frombuffer(raw, np.uint8))


def f32_weight(values: F32) -> Weight:
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    return Weight("w", WeightFormat.named("F32"), values.shape, raw)


class Sum:
    """An exact sum, and how large its terms are: float64 may lose a little of the largest."""

    def __init__(self, terms: Iterator[float]) -> None:
        kept = list(terms)
        self.value = math.fsum(kept)
        self.allowed = U * abs(self.value) + 2.0**-46 * math.fsum(map(abs, kept)) + SUBNORMAL


def check(actual: F32, expected: dict[tuple[int, ...], Sum | float]) -> None:
    """Every element is the expected value, rounded once; none is missing."""
    assert actual.dtype == np.float32
    assert set(expected) == set(np.ndindex(actual.shape))
    for index, sum_ in expected.items():
        value = sum_.value if isinstance(sum_, Sum) else sum_
        # a float went through a few functions of math, each right to 2^-52 or so
        plain = U * abs(value) * (1 + 1e-6) + SUBNORMAL
        allowed = sum_.allowed if isinstance(sum_, Sum) else plain
        assert abs(float(actual[index]) - value) <= allowed, index


# --- norms, products --------------------------------------------------------------------------


def norm_by_hand(x: F32, weight: F32, eps: float) -> dict[tuple[int, ...], Sum | float]:
    expected: dict[tuple[int, ...], Sum | float] = {}
    for t, row in enumerate(x.tolist()):
        mean = math.fsum(v * v for v in row) / len(row)
        for i, v in enumerate(row):
            expected[t, i] = v / math.sqrt(mean + eps) * float(weight[i])
    return expected


@pytest.mark.parametrize("size", [1.0, 1e-30, 1e30, 0.0])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (0, 4)])
def test_rms_norm(shape: tuple[int, int], size: float) -> None:
    x, weight = floats(1, *shape, size=size), floats(2, shape[1])
    check(OPS.rms_norm(x, weight, 1e-5), norm_by_hand(x, weight, 1e-5))


def product_by_hand(x: F32, w: F32) -> dict[tuple[int, ...], Sum | float]:
    return {
        (t, r): Sum(float(a) * float(b) for a, b in zip(x[t], w[r], strict=True))
        for t, r in np.ndindex(len(x), len(w))
    }


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 33), (0, 4, 32), (2, 1, 64)])
@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_linear_multiplies_activations_as_they_are(
    type_name: str, shape: tuple[int, int, int]
) -> None:
    tokens, outputs, inputs = shape
    inputs = inputs if type_name in ("F32", "F16", "BF16") else -(-inputs // 32) * 32
    weight, x = weight_of(type_name, (outputs, inputs)), floats(3, tokens, inputs)
    check(OPS.linear(x, weight), product_by_hand(x, weight.values()))


def test_a_product_beyond_float32_is_infinite() -> None:
    x = np.array([[3e38, 3e38]], np.float32)
    out = OPS.linear(x, f32_weight(np.array([[2, 0], [-1, -1], [1, -1]], np.float32)))
    assert out.tolist() == [[math.inf, -math.inf, 0.0]]


def test_a_matrix_that_comes_in_chunks_is_multiplied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = weight_of("F16", (7, 8)), floats(3, 2, 8)
    whole = OPS.linear(x, weight)
    monkeypatch.setattr("lockstep.engine.weights.CHUNK", 17)  # two rows at a time
    assert [(s.start, s.stop) for s, _ in weight.chunks()] == [(0, 2), (2, 4), (4, 6), (6, 7)]
    np.testing.assert_allclose(OPS.linear(x, weight), whole, rtol=2 * U)


@pytest.mark.parametrize("shared", [True, False])
def test_linear_id_takes_the_matrix_that_was_chosen(shared: bool) -> None:
    stack = weight_of("Q8_0", (4, 3, 32))
    ids = np.array([[0, 3], [2, 2], [3, 1]], np.int32)
    x = floats(6, 3, 1 if shared else 2, 32)
    out = OPS.linear_id(x, stack, ids)
    assert out.shape == (3, 2, 3)
    matrices = stack.values()
    for t, u in np.ndindex(3, 2):
        row = x[t, 0 if shared else u][None]
        check(out[t, u][None], product_by_hand(row, matrices[ids[t, u]]))


def test_get_rows_takes_rows_in_the_order_asked_for() -> None:
    weight = weight_of("Q4_0", (5, 64))
    ids = np.array([4, 0, 4], np.int32)
    assert np.array_equal(OPS.get_rows(weight, ids), weight.values()[[4, 0, 4]])
    assert OPS.get_rows(weight, ids[:0]).shape == (0, 64)


# --- positions ----------------------------------------------------------------------------------


def rope_by_hand(x: F32, positions: Any, p: RopeParams) -> dict[tuple[int, ...], Sum | float]:
    expected: dict[tuple[int, ...], Sum | float] = {}
    for t, h, i in np.ndindex(x.shape[0], x.shape[1], x.shape[2] // 2):
        factor = 1.0 if p.factors is None else float(p.factors[i])
        angle = int(positions[t]) * p.base ** (-2 * i / p.n_rot) / factor * p.scale
        a, b = float(x[t, h, 2 * i]), float(x[t, h, 2 * i + 1])
        cos, sin = math.cos(angle), math.sin(angle)
        # numpy's and math's angles may differ in the last bit, which a long angle multiplies
        slack = 4 * 2.0**-52 * (1 + abs(angle)) * (abs(a) + abs(b))
        for at, value in ((2 * i, a * cos - b * sin), (2 * i + 1, a * sin + b * cos)):
            total = Sum(iter([value]))
            total.allowed += slack
            expected[t, h, at] = total
    return expected


ROPES = {
    "plain": RopeParams(8, 10000.0, 1.0, None),
    "scaled": RopeParams(8, 10000.0, 0.25, None),
    "with factors": RopeParams(8, 500000.0, 1.0, np.array([1, 1.5, 4, 8], np.float32)),
}


@pytest.mark.parametrize("params", ROPES.values(), ids=ROPES.keys())
def test_rope(params: RopeParams) -> None:
    x, positions = floats(7, 4, 3, 8), np.array([0, 1, 63, 100_000], np.int32)
    out = OPS.rope(x, positions, params)
    check(out, rope_by_hand(x, positions, params))
    assert np.array_equal(out[0], x[0])  # position 0 turns nothing


def test_angles_that_are_kept_are_not_taken_for_others() -> None:
    x, ops = floats(11, 3, 2, 8), ReferenceOps()
    at = np.array([0, 5, 9], np.int32)
    for params in [*ROPES.values(), *reversed(ROPES.values())]:
        for positions in (at, at, at + 1):
            fresh = ReferenceOps().rope(x, positions, params)
            assert ops.rope(x, positions, params).tobytes() == fresh.tobytes()
    at[:] += 7  # the caller's own array is not what is kept
    fresh = ReferenceOps().rope(x, at, params)
    assert ops.rope(x, at, params).tobytes() == fresh.tobytes()


# --- attention ----------------------------------------------------------------------------------

SHAPES = list(product([1, 3], [(1, 1), (4, 4), (4, 2), (4, 1)], [1, 5]))  # tokens, heads, cells


def kq_by_hand(q: F32, k: NDArray[Any], group: int) -> dict[tuple[int, ...], Sum | float]:
    return {
        (h, t, c): Sum(float(a) * float(b) for a, b in zip(q[t, h], k[c, h // group], strict=True))
        for h, t, c in np.ndindex(q.shape[1], len(q), len(k))
    }


def kqv_by_hand(p: F32, v: NDArray[Any], group: int) -> dict[tuple[int, ...], Sum | float]:
    heads, tokens, cells = p.shape
    return {
        (t, h * v.shape[2] + d): Sum(
            float(p[h, t, c]) * float(v[c, h // group, d]) for c in range(cells)
        )
        for t, h, d in np.ndindex(tokens, heads, v.shape[2])
    }


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize(("tokens", "heads", "cells"), SHAPES)
def test_scores_and_weighted_values(
    tokens: int, heads: tuple[int, int], cells: int, kind: type[np.floating[Any]]
) -> None:
    q, k = floats(8, tokens, heads[0], 6), floats(9, cells, heads[1], 6).astype(kind)
    v, p = floats(10, cells, heads[1], 6).astype(kind), abs(floats(11, heads[0], tokens, cells))
    group = heads[0] // heads[1]
    check(OPS.kq(q, k), kq_by_hand(q, k, group))
    check(OPS.kqv(p, v), kqv_by_hand(p, v, group))


def soft_max_by_hand(
    x: F32, scale: float, visible: NDArray[np.bool_]
) -> dict[tuple[int, ...], Sum | float]:
    expected: dict[tuple[int, ...], Sum | float] = {}
    for h, t in np.ndindex(x.shape[:2]):
        shown = {c: float(x[h, t, c]) * scale for c in range(x.shape[2]) if visible[t, c]}
        top = max(shown.values(), default=0.0)
        powers = {c: math.exp(s - top) for c, s in shown.items()}
        total = math.fsum(powers.values())
        for c in range(x.shape[2]):
            expected[h, t, c] = powers.get(c, 0.0) / total if shown else 0.0
    return expected


@pytest.mark.parametrize("size", [1.0, 1e4, 3e38, 0.0])
def test_soft_max_leaves_hidden_entries_out_and_gives_zeros_to_a_row_that_sees_nothing(
    size: float,
) -> None:
    x = np.clip(floats(12, 2, 4, 5), -1, 1) * np.float32(size)
    x[0, 1, 2] = -0.0
    visible = np.array([[1, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 1, 0, 1, 0]], bool)
    out = OPS.soft_max(x, 0.125, visible)
    check(out, soft_max_by_hand(x, 0.125, visible))
    assert not out[:, 2].any()
    assert (out[:, 0, 0] == 1).all()


def test_soft_max_without_a_mask_sees_everything() -> None:
    x = floats(13, 3, 4)
    expected = soft_max_by_hand(x[None], 1.0, np.ones((3, 4), bool))
    check(OPS.soft_max(x, 1.0, None)[None], expected)


@pytest.mark.parametrize(("tokens", "heads", "cells"), SHAPES)
def test_flash_attention_is_the_three_ops_without_roundings_between(
    tokens: int, heads: tuple[int, int], cells: int
) -> None:
    q, k = floats(14, tokens, heads[0], 6), floats(15, cells, heads[1], 6)
    v, group = floats(16, cells, heads[1], 6), heads[0] // heads[1]
    visible = np.tri(tokens, cells, cells // 2, dtype=bool)
    visible[0] = False
    expected: dict[tuple[int, ...], Sum | float] = {}
    for t, h in np.ndindex(tokens, heads[0]):
        scores = {c: dot(q[t, h], k[c, h // group]) * 0.5 for c in range(cells) if visible[t, c]}
        total = math.fsum(map(math.exp, scores.values()))
        for d in range(6):
            terms = (math.exp(s) / total * float(v[c, h // group, d]) for c, s in scores.items())
            expected[t, h * 6 + d] = Sum(terms)
    check(OPS.flash_attn(q, k, v, 0.5, visible), expected)


def dot(a: F32, b: F32) -> float:
    return math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True))


# --- element by element, experts ------------------------------------------------------------------

EDGES = np.array([0.0, -0.0, 1e-45, -1e-38, 1e-3, -1.0, 20.0, -87.0, -104.0, -3e38, 3e38], "f4")


def test_swiglu_at_the_edges() -> None:
    up = np.float32(0.75)
    out = OPS.swiglu(EDGES[None], np.full((1, len(EDGES)), up))
    for i, gate in enumerate(EDGES.tolist()):
        grown = math.exp(-gate) if gate > -700 else math.inf
        assert abs(float(out[0, i]) - gate / (1 + grown) * up) <= U * abs(gate * up) + SUBNORMAL
    assert math.copysign(1, out[0, 1]) == -1  # -0.0
    assert math.copysign(1, out[0, 9]) == -1  # -3e38 / infinity


@pytest.mark.parametrize("op", [ReferenceOps.add, ReferenceOps.mul])
def test_adding_and_multiplying_round_once_and_keep_the_sign_of_zero(
    op: Callable[[ReferenceOps, F32, F32], F32],
) -> None:
    a, b = (t.reshape(-1) for t in np.meshgrid(EDGES[:-2], EDGES[:-2]))
    exact = op(OPS, a.astype(np.float64), b.astype(np.float64))  # type: ignore[arg-type]
    assert op(OPS, a, b).tobytes() == exact.astype(np.float32).tobytes()


def test_top_k_is_in_order_of_size_and_the_lowest_id_wins_a_tie() -> None:
    probs = np.array(
        [[0.1, 0.4, 0.4, 0.1], [0.0, -0.0, 0.0, 0.0], [0.2, 0.1, 0.3, 0.4]], np.float32
    )
    assert OPS.top_k(probs, 3).tolist() == [[1, 2, 0], [0, 1, 2], [3, 2, 0]]
    assert (
        OPS.pick(probs, OPS.top_k(probs, 2)).tolist()
        == probs[[[0, 0], [1, 1], [2, 2]], [[1, 2], [0, 1], [3, 2]]].tolist()
    )


def test_weights_of_experts_add_up_to_one_unless_they_are_next_to_nothing() -> None:
    weights = np.array([[0.5, 0.25], [3e-5, 1e-5], [0, 0]], np.float32)
    by = [0.75, MOE_SUM_MIN, MOE_SUM_MIN]
    check(
        OPS.normalise(weights),
        {(t, u): float(weights[t, u]) / by[t] for t, u in np.ndindex(3, 2)},
    )


def test_experts_are_summed() -> None:
    x = floats(19, 2, 3, 4)
    expected: dict[tuple[int, ...], Sum | float] = {
        (t, i): Sum(float(v) for v in x[t, :, i]) for t, i in np.ndindex(2, 4)
    }
    check(OPS.sum_experts(x), expected)
