"""What ggml's ops mean: float32 done by hand must fit, and a slip must not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.ops import near
from lockstep.engine.ops.ggml.base import MEANINGS, expect, like
from lockstep.engine.ops.ggml.products import in_parts
from lockstep.engine.ops.near import Expected
from lockstep.harness.judging.compare import mismatch_between
from lockstep.harness.shadow.judge import rounded_to
from tests.engine.ops.test_ops_reference import weight_of
from tests.shadow_nodes import BUILD, expected, node, normal, params

F32 = NDArray[np.float32]
ONE = np.float32(1)
X, Y = normal(1, 5, 24) * 3, normal(2, 5, 24)
MASK = np.where(np.tril(np.ones((5, 24)), 3) > 0, 0.0, -np.inf).astype(np.float32)


def agrees(found: Expected, result: Any) -> bool:
    actual = np.asarray(result) if found.actual is None else found.actual
    actual = actual.reshape(found.value.shape)
    return mismatch_between(rounded_to(found.value, actual), actual, found.allowed) is None


def softmax(x: F32) -> F32:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True, dtype=np.float32)


def rms(x: F32) -> F32:
    mean = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
    return x * (ONE / np.sqrt(mean + np.float32(1e-5)))


def centred(x: F32) -> F32:
    off = x - x.mean(axis=-1, keepdims=True, dtype=np.float32)
    variance = np.mean(off * off, axis=-1, keepdims=True, dtype=np.float32)
    return off * (ONE / np.sqrt(variance + np.float32(1e-5)))


def turned(x: F32, step: float) -> F32:
    """Adjacent pairs of rows at positions 0 to 4."""
    angles = np.arange(5)[:, None] * step ** (-np.arange(0, 24, 2) / 24)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    out = np.empty_like(x)
    out[:, 0::2] = x[:, 0::2] * cos - x[:, 1::2] * sin
    out[:, 1::2] = x[:, 0::2] * sin + x[:, 1::2] * cos
    return out


SUMS = X.astype(np.float64).sum(-1, keepdims=True).astype(np.float32)  # as ggml: in double
ROPE = params(0, 24, 0, 0, 0, 100.0, 1.0, 0.0, 1.0, 32.0, 1.0)
HALVED = X.astype(np.float16).astype(np.float32)
# op: sources, parameters, float32 by hand, a slip that people make
CASES: dict[str, tuple[tuple[Any, ...], Any, F32, F32]] = {
    "ADD": ((X, Y[:1]), None, X + Y[:1], X + Y),
    "DIV": ((X, Y), None, X / Y, X * (ONE / Y)),
    "SCALE": ((X,), params(0.3), X * np.float32(0.3), X * np.float32(0.3001)),
    "SQR": ((X,), None, X * X, np.abs(X)),
    "ROUND": ((X + 0.5,), None, np.floor(np.abs(X + 0.5) + 0.5) * np.sign(X + 0.5), np.rint(X)),
    "SIGMOID": ((X,), None, ONE / (ONE + np.exp(-X)), np.tanh(X)),
    "SILU": ((X,), None, X / (ONE + np.exp(-X)), X / (ONE + np.exp(-X * np.float32(1.702)))),
    "SOFTPLUS": ((X,), None, np.log(ONE + np.exp(X)), np.maximum(X, 0)),
    "SWIGLU": ((X, Y), None, X / (ONE + np.exp(-X)) * Y, Y / (ONE + np.exp(-Y)) * X),
    "REGLU": ((X, Y), None, np.maximum(X, 0) * Y, np.maximum(Y, 0) * X),
    "RMS_NORM": ((X,), params(1e-5), rms(X), centred(X)),
    "NORM": ((X,), params(1e-5), centred(X), rms(X)),
    "SUM_ROWS": ((X,), None, SUMS, SUMS + X[:, :1]),
    "SOFT_MAX": ((X, MASK), params(0.5), softmax(X * ONE / 2 + MASK), softmax(X + MASK)),
    "MUL_MAT": ((Y, X), None, X @ Y.T, X @ Y[::-1].T),
    "ROPE": ((X[:, None], np.arange(5, dtype=np.int32)), ROPE, turned(X, 100), turned(X, 101)),
    "CONT": ((X.T,), None, X.T.copy(), X.reshape(24, 5)),
    "REPEAT": ((X[:1],), None, np.tile(X[:1], (5, 1)), X),
    "CLAMP": ((X,), params(-1.0, 1.0), X.clip(-1, 1), X.clip(-1, 2)),
}


def apart(left: F32, right: F32) -> bool:
    return bool((left != right).any())


@pytest.mark.parametrize("op", CASES)
def test_float32_by_hand_fits_and_a_slip_does_not(op: str) -> None:
    sources, held, honest, slip = CASES[op]
    assert apart(honest, np.resize(slip, honest.shape))
    shape = (5, 1, 24) if op == "ROPE" else honest.shape
    found = expected(op, honest.reshape(shape), *sources, held=held)
    assert agrees(found, honest)
    assert not agrees(found, np.resize(slip, honest.shape).astype(np.float32))
    assert found.reason


@pytest.mark.parametrize("op", [op for op in CASES if op not in ("ADD", "DIV", "SQR", "CONT")])
def test_one_part_in_ten_thousand_of_one_element_does_not_fit(op: str) -> None:
    sources, held, honest, _ = CASES[op]
    wrong = honest.copy()
    at = np.unravel_index(np.abs(wrong).argmax(), wrong.shape)
    wrong[at] *= np.float32(1.0001)
    shape = (5, 1, 24) if op == "ROPE" else honest.shape
    assert not agrees(expected(op, honest.reshape(shape), *sources, held=held), wrong)


def test_scores_beyond_float32_have_no_limit_and_those_of_other_rows_have() -> None:
    """Honest engines part where one overflows: each element of that row may be anything."""
    x = X.copy()
    x[1, 0] = 3e38
    found = expected("SOFT_MAX", x, x, None, held=params(2.0))
    allowed = np.broadcast_to(np.asarray(found.allowed), found.value.shape).reshape(x.shape)
    assert np.isinf(allowed).all(axis=-1).tolist() == [row == 1 for row in range(len(x))]


def test_a_hidden_score_that_is_no_number_leaves_its_row_without_a_limit() -> None:
    """llama.cpp adds minus infinity to it, and who leaves the cell out has a number; one that is
    shown is no number for anybody."""
    x = X.copy()
    x[1, 23] = x[2, 0] = np.nan
    found = expected("SOFT_MAX", x, x, MASK, held=params(1.0))
    allowed = np.broadcast_to(np.asarray(found.allowed), found.value.shape).reshape(x.shape)
    assert np.isinf(allowed).all(axis=-1).tolist() == [row == 1 for row in range(len(x))]
    assert not np.isinf(allowed[2]).any()
    assert np.isnan(found.value.reshape(x.shape)[2]).all()


@pytest.mark.parametrize("wrong", [0.0, np.nan, -np.inf], ids=["numbers", "a NaN", "an infinity"])
@pytest.mark.parametrize("bounds", [True, False], ids=["with bounds", "without"])
def test_rows_some_after_the_others_are_what_they_are_at_once(
    bounds: bool, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With slopes by head, sinks, a mask of more rows, and hidden scores beyond float32."""
    x = normal(3, 2, 6, 10, 24) * 3
    x[0, 1, 4, 7] += np.float32(wrong)
    x[1, 2, 9, 23] = 3e38  # hidden
    mask = np.where(np.tril(np.ones((16, 24)), 3) > 0, 0.0, -np.inf).astype(np.float32)
    asked = node("SOFT_MAX", x, x, mask, normal(4, 6), held=params(0.5, 8.0))
    build = replace(BUILD, bounds=bounds)
    first = expect(asked, build)
    monkeypatch.setattr("lockstep.engine.ops.ggml.soft_max.PIECE", 3 * 2 * 6 * 24)
    again = expect(asked, build)
    np.testing.assert_array_equal(again.value, first.value)
    np.testing.assert_array_equal(again.allowed, first.allowed)
    assert again.reason == first.reason


def test_a_product_with_halves_takes_halves() -> None:
    weights = Y.astype(np.float16)
    found = expected("MUL_MAT", X @ Y.T, weights, X)
    assert agrees(found, HALVED @ weights.astype(np.float32).T)
    assert not agrees(found, X @ weights.astype(np.float32).T)


def test_an_expert_is_the_one_that_was_chosen() -> None:
    experts, ids = normal(3, 4, 6, 24), np.array([[0, 3], [2, 1], [3, 3]], np.int32)
    x = X[:3, None]
    result = np.einsum("tuok,tk->tuo", experts[ids], X[:3]).astype(np.float32)
    found = expected("MUL_MAT_ID", result, experts, x, ids)
    assert agrees(found, result)
    assert not agrees(found, result[:, ::-1])


def test_rows_are_written_where_the_indices_say_and_nowhere_else() -> None:
    before, rows = normal(4, 8, 4).astype(np.float16), normal(5, 2, 4)
    after = before.copy()
    after[[6, 1]] = rows.astype(np.float16)
    found = expected("SET_ROWS", after, rows, np.array([6, 1], np.int64), before)
    assert agrees(found, after)
    for wrong in (before, np.roll(after, 1, axis=0)):
        assert not agrees(found, wrong)


@pytest.mark.parametrize(
    ("ids", "fits"),
    [
        ([2, 0, 1], True),
        ([2, 1, 0], True),
        ([0, 1, 2], False),
        ([2, 2, 0], False),
        ([2, 0, 9], False),
    ],
)
def test_ties_are_sorted_in_any_order_and_nothing_else_is(ids: list[int], fits: bool) -> None:
    x = np.array([1.0, 1.0, 2.0], np.float32)
    found = expected("ARGSORT", np.array(ids, np.int32), x, held=params(1))
    assert agrees(found, ids) is fits


@pytest.mark.parametrize(
    ("ids", "fits"), [([3, 0], True), ([0, 3], True), ([3, 3], False), ([0, 1], False)]
)
def test_the_largest_come_in_any_order_but_once(ids: list[int], fits: bool) -> None:
    x = np.array([5.0, 1.0, 2.0, 7.0], np.float32)
    assert agrees(expected("TOP_K", np.array(ids, np.int32), x), ids) is fits


def test_gelu_is_a_half_from_a_table() -> None:
    x = np.array([[0.7, -1.3, 11.0, -11.0]], np.float32)
    inner = np.sqrt(2 / np.pi) * halved(x) * (1 + 0.044715 * halved(x) ** 2)
    table = halved(0.5 * halved(x) * (1 + np.tanh(inner))).astype(np.float32)
    table[0, 2:] = 11.0, 0.0
    found = expected("GELU", table, x)
    assert agrees(found, table)
    smooth = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * x * (1 + 0.044715 * x * x)))
    assert not agrees(found, smooth)


def halved(x: NDArray[Any]) -> NDArray[np.float64]:
    return x.astype(np.float16).astype(np.float64)


def test_an_op_without_a_meaning_is_named() -> None:
    with pytest.raises(Unsupported, match="no semantics of OPT_STEP_ADAMW"):
        expect(node("OPT_STEP_ADAMW", X, X), BUILD)


def test_more_than_fifty_ops_have_a_meaning() -> None:
    expected("ADD", X, X, X)
    assert len(MEANINGS) >= 52


# --- numbers with a radius --------------------------------------------------------------------

FORMULAS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[F32, F32], F32]]] = {
    "sum": (lambda a, b: a + b, lambda a, b: a + b),
    "difference": (lambda a, b: a - b, lambda a, b: a - b),
    "product of products": (lambda a, b: a * b * a, lambda a, b: a * b * a),
    "quotient": (lambda a, b: a / (b * b), lambda a, b: a / (b * b)),
    "power": (lambda a, b: (a * b).exp(), lambda a, b: np.exp(a * b)),
    "root": (lambda a, b: (a * a + b * b).sqrt(), lambda a, b: np.sqrt(a * a + b * b)),
    "logarithm": (lambda a, b: (a * a + b * b).log(), lambda a, b: np.log(a * a + b * b)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_radius_covers_float32_and_not_ten_times_its_error(name: str) -> None:
    wide, narrow = FORMULAS[name]
    a, b = normal(7, 4000), normal(8, 4000)
    found = wide(near.exact(a.astype(np.float64)), near.exact(b.astype(np.float64)))
    error = np.abs(narrow(a, b).astype(np.float64) - found.v)
    assert (error <= found.r).all()
    assert (error > found.r / 10).any()


def test_the_radius_of_a_sum_counts_its_roundings() -> None:
    terms = normal(9, 300, 64)
    found = near.total(near.exact(terms.astype(np.float64)), 63, keep=False)
    running = np.zeros(300, np.float32)
    for i in range(64):
        running += terms[:, i]
    assert (np.abs(running - found.v) <= found.r).all()
    dropped = found.v - np.abs(terms).max(axis=-1) * 1e-3
    assert (np.abs(dropped - found.v) > found.r).all()


@pytest.mark.parametrize("small", [(0, 1), (0, 4)])
def test_of_no_rows_none_is_made(small: tuple[int, ...]) -> None:
    """A batch of which no output is asked for: the last layer's ops have no rows."""
    assert like(np.ones(small), (0, 4)).shape == (0, 4)


@pytest.mark.parametrize("ids", [[-1], [-7], [4], [-1, 3], [3, 9]])
def test_ids_of_no_column_are_no_choice_of_the_largest(ids: list[int]) -> None:
    """One taken modulo the columns, or clipped to them, may be right."""
    x = np.array([[5.0, 1.0, 2.0, 5.0]], np.float32)
    chosen = np.array([ids], np.int32)
    assert not agrees(expected("TOP_K", chosen, x), chosen)


@pytest.mark.parametrize(
    ("kind", "value", "free"),
    [("Q8_0", np.nan, True), ("Q8_0", np.inf, True), ("F16", np.nan, False)],
)
def test_nothing_limits_what_blocks_make_of_what_is_no_number(
    kind: str, value: float, free: bool
) -> None:
    x = normal(3, 3, 64)
    x[1, 7] = value
    found = in_parts(x, weight_of(kind, (5, 64)), BUILD)
    limits = np.concatenate([part.settled().allowed for _, part in found], axis=-1)
    assert np.isfinite(limits[[0, 2]]).all()
    assert np.isposinf(limits[1]).all() == free
