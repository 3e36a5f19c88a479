"""Functions made of IEEE operations are as accurate as the C library's, also for hard arguments."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.ops import functions
from lockstep.engine.ops.sums import in_order

F64 = NDArray[np.float64]
RNG = np.random.default_rng(7)
NEAR, WIDE = RNG.uniform(-1, 1, 500), RNG.uniform(-30, 30, 500)
LARGE = RNG.uniform(-700, 700, 500)
ANGLES = np.r_[NEAR, WIDE, RNG.uniform(-1e6, 1e6, 500), np.arange(-50, 50) * (math.pi / 2)]
HUGE = np.array([2.0**20, 1e7, -1e22, 3e38, 1.7e308])
# arguments to test, and the additional error of the C library in units in the last place
SINGLE = {
    "exp": (functions.exp, math.exp, np.r_[NEAR, WIDE, LARGE, -745.0], 2),
    "expm1": (functions.expm1, math.expm1, np.r_[NEAR, NEAR * 1e-9, WIDE, LARGE], 3),
    "log": (functions.log, math.log, np.r_[np.abs(NEAR), np.exp(LARGE), 5e-324], 2),
    "tanh": (functions.tanh, math.tanh, np.r_[NEAR, NEAR * 1e-9, WIDE], 4),
    "sin": (functions.sin, math.sin, np.r_[ANGLES, HUGE], 3),
    "cos": (functions.cos, math.cos, np.r_[ANGLES, HUGE], 3),
    # includes the rounding of x * x in exp(-x * x), up to 9
    "erf": (functions.erf, math.erf, np.r_[NEAR, NEAR * 1e-9, NEAR * 7], 20),
}
ODD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 800.0, -800.0, 1e308])


@pytest.mark.parametrize("name", SINGLE)
def test_function_matches_the_c_library_within_a_few_units(name: str) -> None:
    ours, theirs, x, units = SINGLE[name]
    want = np.array([theirs(v) for v in x])
    off = np.abs(ours(x) - want) / np.spacing(np.abs(want))
    assert off.max() <= units, (x[off.argmax()], off.max())


@pytest.mark.parametrize(
    ("ours", "numpy"),
    [
        *((functions.exp, np.exp), (functions.expm1, np.expm1), (functions.log, np.log)),
        *((functions.tanh, np.tanh), (functions.sin, np.sin), (functions.cos, np.cos)),
    ],
)
def test_nan_infinity_and_signed_zero_follow_ieee(
    ours: Callable[[F64], F64], numpy: Callable[[F64], F64]
) -> None:
    x = ODD[np.abs(ODD) < 1e3] if numpy in (np.sin, np.cos) else ODD
    with np.errstate(all="ignore"):
        want = numpy(x)
    got = ours(x)
    assert np.array_equal(got, want, equal_nan=True) or np.allclose(got, want, rtol=1e-15, atol=0)
    assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()


def test_erf_and_angles_follow_ieee_for_special_values() -> None:
    assert np.array_equal(functions.erf(ODD[:5]), [np.nan, 1, -1, 0, 0], equal_nan=True)
    assert np.isnan(functions.sin(ODD[:3])).all()


def test_power_matches_repeated_products() -> None:
    assert np.allclose(functions.power(1e4, [-0.5, 0.0, 2.0]), [1e-2, 1.0, 1e8], rtol=1e-14, atol=0)


def test_ordered_products_handle_stacks_of_any_size() -> None:
    a, b = RNG.normal(size=(2, 1, 5, 33)), RNG.normal(size=(3, 33, 4))
    assert in_order(a, b).shape == (2, 3, 5, 4)
    assert np.allclose(in_order(a, b), a @ b, rtol=1e-13, atol=1e-13)
    assert (in_order(a[..., :0], b[:, :0]) == 0).all()


def test_products_are_added_from_the_first_term_to_the_last() -> None:
    terms = np.array([1.0, 1e-16, 1e-16, 1e-16, 1e-16, 1e-16, 1e-16, 1e-16, 1e-16])
    assert in_order(terms[None], np.ones((9, 1))) == 1.0
    assert in_order(terms[None, ::-1], np.ones((9, 1))) > 1.0


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("size", [(1, 600, 70), (3, 257, 33), (2, 3, 5)])
def test_compiled_products_have_the_bits_of_a_plain_loop(
    size: tuple[int, int, int], kind: type[np.floating[Any]]
) -> None:
    """Fused products, and sums in several lanes, would have other bits."""
    rows, terms, columns = size
    a, w = RNG.normal(size=(rows, terms)).astype(kind), RNG.normal(size=(columns, terms))
    b = w.astype(kind).T
    want = np.zeros((rows, columns), kind)
    for k in range(terms):
        want += a[:, k, None] * b[k]
    assert in_order(a, b).tobytes() == want.tobytes()
