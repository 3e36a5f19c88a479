"""The allowed error of whole rows of a norm: the error of a float32 sum of squares."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.node import Node
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.near import U
from lockstep.harness.graph.norm_sums import error_of_rows
from lockstep.harness.graph.ways import Honest, Noisy
from tests.shadow_nodes import node, normal, params

ROWS, EPS = 64, 1e-5
BUILD = Build(lanes=1)
Rows = NDArray[np.float32]


def norm(x: Rows, op: str = "RMS_NORM") -> Node:
    return node(op, np.zeros_like(x), x, held=params(EPS))


def massive(x: Rows, times: float) -> Rows:
    """Make one channel thousands of times larger than the others, as in real models."""
    x = x.copy()
    x[:, 7] = times
    return x


def scales(x: Rows, sums: NDArray[Any]) -> NDArray[np.float64]:
    mean = sums.astype(np.float64)[..., None] / x.shape[-1]
    return 1 / np.sqrt(mean + EPS)


def one_by_one(x: Rows) -> NDArray[np.float64]:
    return scales(x, np.cumsum(x * x, axis=-1, dtype=np.float32)[..., -1])


def in_double(x: Rows) -> NDArray[np.float64]:
    return scales(x, np.square(x, dtype=np.float64).sum(axis=-1))


def off(x: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the error of whole rows whose squares are added in float32, and the allowed error."""
    return np.abs(one_by_one(x) / in_double(x) - 1), error_of_rows(norm(x))[0, 0]


@pytest.mark.parametrize("width", [64, 1024, 8192])
@pytest.mark.parametrize("times", [0.5, 300, 1000, 3000, 5000])
def test_error_of_float32_sum_of_squares_is_below_twice_the_estimate(
    width: int, times: float
) -> None:
    found, allowed = off(massive(normal(1, ROWS, width), times))
    assert (found < 2 * allowed).all()


def test_row_with_one_huge_element_has_a_large_error() -> None:
    """Honest runs with sums in double precision and random roundings do not show this error."""
    x = massive(normal(1, ROWS, 4096), 5000)
    found, allowed = off(x)
    assert (found > 5 * U * np.sqrt(4096 / 3) / 2).all()
    assert (allowed < 2 * found).all()


def test_ordinary_rows_differ_in_a_few_last_bits() -> None:
    _, allowed = off(normal(1, ROWS, 1024))
    assert (allowed < U * np.sqrt(1024 / 3)).all()  # twice the error of random rounding


def test_wrong_eps_exceeds_the_error_of_rows() -> None:
    x = normal(1, ROWS, 1024)
    _, allowed = off(x)
    wrong = np.sqrt((np.square(x).mean(axis=-1, keepdims=True) + EPS) ** -1)
    right = np.sqrt((np.square(x).mean(axis=-1, keepdims=True) + 10 * EPS) ** -1)
    assert (np.abs(wrong / right - 1) > 2 * allowed).all()


@pytest.mark.parametrize("op", ["RMS_NORM", "NORM"])
def test_zero_and_nan_rows_have_no_error(op: str) -> None:
    x = normal(1, 3, 64)
    x[0], x[1, 5], x[2, 5] = 0, np.inf, np.nan
    assert not error_of_rows(norm(x, op)).any()


def test_layer_norm_error_comes_from_squares_without_the_mean() -> None:
    x = massive(normal(1, ROWS, 4096), 5000)
    plain = error_of_rows(norm(x, "NORM"))
    assert np.allclose(plain, error_of_rows(norm(x - x.mean(axis=-1, keepdims=True))), rtol=0.2)


def test_noisy_run_scales_each_row_by_its_error() -> None:
    x = massive(normal(1, ROWS, 4096), 5000)
    made = norm(x)
    honest = Honest(sizes=False).compute(BUILD, made)[0, 0].astype(np.float64)
    noisy = Noisy(seed=1).compute(BUILD, made)[0, 0]
    shares = np.median(noisy / honest, axis=-1) - 1
    allowed = error_of_rows(made)[0, 0, :, 0]
    assert (np.abs(shares) < allowed + U).all()
    assert np.abs(shares).max() > 0.7 * allowed.max()
    assert shares.min() < 0 < shares.max()
