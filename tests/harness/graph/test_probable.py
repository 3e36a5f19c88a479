"""Probable errors of a sum of products: they cover scalar loops, and little more."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.node import Node
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.base import expect
from lockstep.engine.ops.near import U
from lockstep.harness.graph.probable import SAMPLED, error_of_product, error_of_sums
from tests.shadow_nodes import node, normal

TOKENS, ROWS = 16, 100  # more rows than the sample has
SCALAR = Build(lanes=1)
# relative error of values in float32, for one token or many: a few units in the last place
ROUNDED = 1e-6
Matrix = NDArray[np.float32]


def product(weights: Matrix, x: Matrix) -> Node:
    return node("MUL_MAT", np.zeros((len(x), len(weights)), np.float32), weights, x)


def of(made: Node, build: Build = SCALAR) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the value, the probable error, and the bound; without leading axes."""
    found = expect(made, build)
    error = error_of_product(made, found.value)
    return found.value[0, 0], error[0, 0], np.asarray(found.allowed)[0, 0]


def one_by_one(weights: Matrix, x: Matrix) -> Matrix:
    """Return the sums of a scalar loop in float32."""
    return np.cumsum(x[:, None] * weights[None], axis=-1, dtype=np.float32)[..., -1]


def same_sign(weights: Matrix, x: Matrix) -> tuple[Matrix, Matrix]:
    return np.abs(weights), np.abs(x)


def one_is_huge(weights: Matrix, x: Matrix) -> tuple[Matrix, Matrix]:
    """Make the first term so large that all partial sums are nearly equal to it."""
    return weights, np.concatenate([1000 * x[:, :1], x[:, 1:]], axis=1)


def few_are_not_zero(weights: Matrix, x: Matrix) -> tuple[Matrix, Matrix]:
    return weights, x * (np.arange(x.shape[1]) % 16 == 0).astype(np.float32)


def first_up_then_down(weights: Matrix, x: Matrix) -> tuple[Matrix, Matrix]:
    """Order the terms so that partial sums are large and the whole sum is small."""
    signs = np.where(np.arange(x.shape[1]) < x.shape[1] // 2, 1, -1).astype(np.float32)
    return np.abs(weights) * signs, np.abs(x)


def first_down_then_up(weights: Matrix, x: Matrix) -> tuple[Matrix, Matrix]:
    weights, x = first_up_then_down(weights, x)
    return -weights, x


@pytest.mark.parametrize("terms", [64, 1024, 8192])
@pytest.mark.parametrize("kind", [first_up_then_down, first_down_then_up])
@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("rows", [8, ROWS])
def test_sum_with_far_larger_partial_sums_is_within_its_probable_error(
    terms: int, kind: Any, step: int, rows: int
) -> None:
    weights, x = kind(normal(1, rows, terms), normal(2, TOKENS, terms))
    value, error, _ = of(product(weights, x))
    off = (one_by_one(weights[:, ::step], x[:, ::step]) - value) / error
    assert np.sqrt(np.mean(off**2)) < np.sqrt(1 / 3)
    assert np.abs(off).max() < 2.5


def test_order_in_the_file_adds_no_error_if_terms_are_random() -> None:
    weights, x = normal(1, ROWS, 1024), normal(2, TOKENS, 1024)
    value, error, _ = of(product(weights, x))
    squares = np.square(x, dtype=np.float64) @ np.square(weights, dtype=np.float64).mean(axis=0)
    plain = U * np.sqrt(1024 * (squares[:, None] + np.square(value)))
    assert np.allclose(error, plain, rtol=0.1)


@pytest.mark.parametrize("terms", [16, 128, 1024, 8192])
@pytest.mark.parametrize("kind", [lambda *both: both, same_sign, one_is_huge, few_are_not_zero])
def test_scalar_loop_is_off_by_less_than_a_random_share(terms: int, kind: Any) -> None:
    weights, x = kind(normal(1, ROWS, terms), normal(2, TOKENS, terms))
    value, error, _ = of(product(weights, x))
    off = (one_by_one(weights, x) - value) / error
    # a uniform number from -1 to 1 has this deviation
    assert np.sqrt(np.mean(off**2)) < np.sqrt(1 / 3)
    # such errors are normally distributed: one in 10,000 is beyond four sigma
    assert np.abs(off).max() < 2.5


def test_sum_that_loses_a_bit_of_each_term_is_off_by_more() -> None:
    """The engine adds in half precision, or rounds terms to BF16."""
    weights, x = normal(1, ROWS, 1024), normal(2, TOKENS, 1024)
    value, error, _ = of(product(weights, x))
    short = (x.view(np.uint32) & np.uint32(0xFFFFFF00)).view(np.float32)  # keeps sixteen bits
    off = (one_by_one(weights, short) - value) / error
    assert np.sqrt(np.mean(off**2)) > 2


def test_error_of_long_rows_is_a_small_part_of_the_bound() -> None:
    weights, x = normal(1, ROWS, 4096), normal(2, TOKENS, 4096)
    _, error, bound = of(product(weights, x))
    assert (error < bound / 50).all()


def test_error_is_no_more_than_the_bound_of_a_scalar_engine() -> None:
    weights, x = normal(1, 8, 64), normal(2, TOKENS, 64)
    _, error, bound = of(product(weights, x))
    assert (error < bound).all()


def test_empty_cells_do_not_change_other_errors() -> None:
    cells, queries = normal(1, 512, 64), normal(2, TOKENS, 64)
    cells[5:] = 0.0
    value, error, _ = of(product(cells, queries))
    _, alone, _ = of(product(cells[:5], queries))
    assert 0.5 < np.median(error[:, :5] / alone) < 2
    off = (one_by_one(cells, queries) - value)[:, :5] / error[:, :5]
    assert np.sqrt(np.mean(off**2)) < np.sqrt(1 / 3)


def test_empty_cache_is_exact() -> None:
    _, error, _ = of(product(np.zeros((2 * SAMPLED, 64), np.float32), normal(2, TOKENS, 64)))
    assert not error.any()


@pytest.mark.parametrize("rows", [8, ROWS])
def test_error_of_each_expert_is_that_of_a_plain_product(rows: int) -> None:
    experts, x = normal(1, 3, rows, 32), normal(2, TOKENS, 1, 32)
    ids = np.arange(2 * TOKENS, dtype=np.int32).reshape(TOKENS, 2) % 3
    made = node("MUL_MAT_ID", np.zeros((TOKENS, 2, rows), np.float32), experts, x, ids)
    value = expect(made, SCALAR).value
    found = error_of_product(made, value)[0]
    for token, used in np.ndindex(ids.shape):
        _, alone, _ = of(product(experts[ids[token, used]], x[token]))
        assert np.allclose(found[token, used], alone[0], rtol=ROUNDED)


def test_errors_of_grouped_heads_follow_their_queries() -> None:
    keys, queries = normal(1, 2, 10, 32), normal(2, 4, 5, 32)
    made = node("MUL_MAT", np.zeros((4, 5, 10), np.float32), keys, queries)
    found = error_of_product(made, expect(made, SCALAR).value)[0]
    for head in range(4):
        _, alone, _ = of(product(keys[head // 2], queries[head]))
        assert np.allclose(found[head], alone, rtol=ROUNDED)


def test_error_is_not_finite_if_one_order_of_addition_overflows() -> None:
    weights, x = normal(1, 8, 64), normal(2, TOKENS, 64)
    x[3] *= np.float32(1e37)  # the sum is finite, but partial sums may overflow
    value, error, bound = of(product(weights, x))
    assert np.isfinite(value[3]).all()
    assert np.isinf(error[3][np.isinf(bound[3])]).all()
    assert np.isinf(bound[3]).any()
    assert np.isfinite(np.delete(error, 3, axis=0)).all()


def test_infinite_input_changes_no_other_row() -> None:
    weights, x = normal(1, ROWS, 32), normal(2, TOKENS, 32)
    _, error, _ = of(product(weights, x))
    x[3, 4] = np.inf
    _, other, _ = of(product(weights, x))
    assert np.array_equal(np.delete(error, 3, axis=0), np.delete(other, 3, axis=0))


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("row", [0, 5])  # row 0 is part of the sample
def test_infinite_weight_does_not_change_the_error_of_other_rows(wrong: float, row: int) -> None:
    """The limit of the row with the infinite weight stays zero. Otherwise honest runs would seem to
    overflow."""
    weights, x = normal(1, ROWS, 32), normal(2, TOKENS, 32)
    _, error, _ = of(product(weights, x))
    weights[row, 7] = wrong
    _, other, _ = of(product(weights, x))
    assert not other[:, row].any()
    others = np.arange(ROWS) != row
    assert np.allclose(other[:, others], error[:, others], rtol=0.1)


@pytest.mark.parametrize("columns", [1, 7], ids=["a mean for all", "each row's own"])
def test_errors_of_sums_do_not_depend_on_chunks(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = normal(5, 2, 3, 11, 7).astype(np.float64)
    squares = np.square(normal(6, 2, 3, 11, columns).astype(np.float64))
    value[1, 2, 10, 6] = np.nan  # the last element
    at_once = error_of_sums(value, squares, 64)
    monkeypatch.setattr("lockstep.harness.graph.probable.PIECE", 4 * 7)
    np.testing.assert_array_equal(error_of_sums(value, squares, 64), at_once)
