"""Definitions of ggml's ops accept float32 results computed by hand, and refuse small mistakes."""

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
X, Y = normal(1, 5, 24) * 3, normal(2, 5, 24)
MASK = np.where(np.tril(np.ones((5, 24)), 3) > 0, 0.0, -np.inf).astype(np.float32)


def agrees(found: Expected, result: Any) -> bool:
    actual = np.asarray(result) if found.actual is None else found.actual
    actual = actual.reshape(found.value.shape)
    return mismatch_between(rounded_to(found.value, actual), actual, found.allowed) is None


def test_scores_beyond_float32_lift_the_limit_of_their_row_only() -> None:
    """Honest engines differ if one of them overflows, so the elements of such a row may have any
    value."""
    x = X.copy()
    x[1, 0] = 3e38
    found = expected("SOFT_MAX", x, x, None, held=params(2.0))
    allowed = np.broadcast_to(np.asarray(found.allowed), found.value.shape).reshape(x.shape)
    assert np.isinf(allowed).all(axis=-1).tolist() == [row == 1 for row in range(len(x))]


def test_hidden_nan_score_lifts_the_limit_of_its_row() -> None:
    """llama.cpp adds minus infinity to a hidden score, but an engine that skips the cell gets a
    number. A visible NaN score gives NaN in every engine."""
    x = X.copy()
    x[1, 23] = x[2, 0] = np.nan
    found = expected("SOFT_MAX", x, x, MASK, held=params(1.0))
    allowed = np.broadcast_to(np.asarray(found.allowed), found.value.shape).reshape(x.shape)
    assert np.isinf(allowed).all(axis=-1).tolist() == [row == 1 for row in range(len(x))]
    assert not np.isinf(allowed[2]).any()
    assert np.isnan(found.value.reshape(x.shape)[2]).all()


@pytest.mark.parametrize("wrong", [0.0, np.nan, -np.inf], ids=["numbers", "a NaN", "an infinity"])
@pytest.mark.parametrize("bounds", [True, False], ids=["with bounds", "without"])
def test_rows_in_parts_equal_rows_at_once(
    bounds: bool, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cases have slopes by head, sinks, a mask with more rows, and hidden scores beyond
    float32."""
    x = normal(3, 2, 6, 10, 24) * 3
    x[0, 1, 4, 7] += np.float32(wrong)
    x[1, 2, 9, 23] = 3e38  # this score is masked
    mask = np.where(np.tril(np.ones((16, 24)), 3) > 0, 0.0, -np.inf).astype(np.float32)
    asked = node("SOFT_MAX", x, x, mask, normal(4, 6), held=params(0.5, 8.0))
    build = replace(BUILD, bounds=bounds)
    first = expect(asked, build)
    monkeypatch.setattr("lockstep.engine.ops.ggml.soft_max.PIECE", 3 * 2 * 6 * 24)
    again = expect(asked, build)
    np.testing.assert_array_equal(again.value, first.value)
    np.testing.assert_array_equal(again.allowed, first.allowed)
    assert again.reason == first.reason


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


def test_unknown_op_is_named() -> None:
    with pytest.raises(Unsupported, match="no semantics of OPT_STEP_ADAMW"):
        expect(node("OPT_STEP_ADAMW", X, X), BUILD)


def test_more_than_fifty_ops_are_defined() -> None:
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
def test_radius_covers_float32_but_not_ten_times_its_error(name: str) -> None:
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
def test_input_without_rows_gives_no_rows(small: tuple[int, ...]) -> None:
    """The last layer's ops have no rows if no output of the batch is requested."""
    assert like(np.ones(small), (0, 4)).shape == (0, 4)


@pytest.mark.parametrize("ids", [[-1], [-7], [4], [-1, 3], [3, 9]])
def test_invalid_ids_are_not_a_top_k_choice(ids: list[int]) -> None:
    """Taken modulo the number of columns, or clipped, such an id might be right."""
    x = np.array([[5.0, 1.0, 2.0, 5.0]], np.float32)
    chosen = np.array([ids], np.int32)
    assert not agrees(expected("TOP_K", chosen, x), chosen)


@pytest.mark.parametrize(
    ("kind", "value", "free"),
    [("Q8_0", np.nan, True), ("Q8_0", np.inf, True), ("F16", np.nan, False)],
)
def test_nan_activations_in_blocks_have_no_limit(kind: str, value: float, free: bool) -> None:
    x = normal(3, 3, 64)
    x[1, 7] = value
    found = in_parts(x, weight_of(kind, (5, 64)), BUILD)
    limits = np.concatenate([part.settle().allowed for _, part in found], axis=-1)
    assert np.isfinite(limits[[0, 2]]).all()
    assert np.isposinf(limits[1]).all() == free
