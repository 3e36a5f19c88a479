"""Vectors as numba types: their rounding, halves without a processor instruction, and refusals.

Decoders consist of loads, integers, bits and tables, which golden vectors test bit for bit.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import njit
from numba.core.errors import NumbaError
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from lockstep.engine.kernels import lanes
from lockstep.engine.kernels.lanes import (
    as_float,
    bytes_at,
    concat,
    floats_at,
    half_of_bits,
    store,
    where,
)
from lockstep.engine.kernels.vectors import I16, half_by_bits

G = Generator(Philox(5))
RAW = G.integers(0, 256, 4099, np.uint8)
FLOATS = np.concatenate(
    [
        np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, -1e-42, 3.4e38], np.float32),
        (G.standard_normal(24) * 10.0 ** G.integers(-3, 4, 24)).astype(np.float32),
    ]
)
PATTERNS = np.arange(65536, dtype=np.uint16)


def compiled(function: Callable[..., None]) -> Any:
    return njit(nogil=True)(function)


def lanes_of(function: Callable[..., None], count: int, *args: Any) -> NDArray[np.float32]:
    """Return the output of a kernel (out, ...); assert that it writes nothing else."""
    out = np.full(count + 2, np.float32(-7777))
    compiled(function)(out[1:-1], *args)
    assert out[0] == out[-1] == -7777
    return out[1:-1]


def same(a: Any, b: Any) -> bool:
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    equal = (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))
    return a.shape == b.shape and bool(equal.all())


HALVES = PATTERNS.view(np.float16).astype(np.float32)


def all_halves(load: Any) -> NDArray[np.float32]:
    out = np.empty(65536, np.float32)

    def every(out: Any, raw: Any) -> None:
        for i in range(0, 65536, 16):
            store(out, i, load(raw, 2 * i, 16))

    compiled(every)(out, PATTERNS.view(np.uint8))
    return out


def test_every_half_decodes_to_its_value() -> None:
    assert same(all_halves(lanes.halves_at), HALVES)


def by_bits(context: Any, builder: Any, bits: Any, to: Any) -> Any:
    return half_by_bits(builder, bits, to)


def test_every_half_decodes_without_a_processor_instruction() -> None:
    found = all_halves(lanes.load_of(I16, by_bits, "float"))
    assert found.tobytes() == HALVES.tobytes()  # even the payloads of NaN are equal


@pytest.mark.parametrize("from_bits", [True, False])
def test_every_single_half_decodes_to_its_value(from_bits: bool) -> None:
    out, load = np.empty(65536, np.float32), lanes.half_at

    def loaded(out: Any, raw: Any) -> None:
        for i in range(65536):
            out[i] = load(raw, 2 * i)

    def converted(out: Any, raw: Any) -> None:
        for i in range(65536):
            out[i] = half_of_bits(i)

    compiled(converted if from_bits else loaded)(out, PATTERNS.view(np.uint8))
    assert same(out, HALVES)


# --- operators ------------------------------------------------------------------------------------

ON_BOTH = [operator.add, operator.sub, operator.mul]


@pytest.mark.parametrize("apply", ON_BOTH, ids=lambda f: f.__name__)
def test_floats_are_rounded_after_every_operation(apply: Any) -> None:
    k, y = np.float32(1.1), FLOATS[::-1].copy()

    def between(out: Any, x: Any, y: Any) -> None:
        store(out, 0, apply(floats_at(x, 0, 32), floats_at(y, 0, 32)))

    def left(out: Any, x: Any) -> None:
        store(out, 0, apply(floats_at(x, 0, 32), k))

    def right(out: Any, x: Any) -> None:
        store(out, 0, apply(k, floats_at(x, 0, 32)))

    with np.errstate(all="ignore"):
        assert same(lanes_of(between, 32, FLOATS, y), apply(FLOATS, y))
        assert same(lanes_of(left, 32, FLOATS), apply(FLOATS, k))
        assert same(lanes_of(right, 32, FLOATS), apply(k, FLOATS))


def test_a_product_and_a_sum_are_not_contracted_to_one_rounding() -> None:
    x, y, z = (G.uniform(-1, 1, 32).astype(np.float32) for _ in range(3))

    def kernel(out: Any, x: Any, y: Any, z: Any) -> None:
        store(out, 0, floats_at(x, 0, 32) * floats_at(y, 0, 32) - floats_at(z, 0, 32))

    found = lanes_of(kernel, 32, x, y, z)
    assert same(found, x * y - z)
    assert not same(found, x.astype(np.float64) * y - z)  # the result of a contraction


def test_negation_changes_the_sign_of_zero() -> None:
    assert same(lanes_of(lambda out, x: store(out, 0, -floats_at(x, 0, 32)), 32, FLOATS), -FLOATS)
    found = lanes_of(lambda out, raw: store(out, 0, as_float(-bytes_at(raw, 0, 8))), 8, RAW)
    assert same(found, -RAW[:8].astype(np.int32))


# --- refusals -------------------------------------------------------------------------------------


def doubles_beside_floats(out: Any, raw: Any, n: int) -> None:
    store(out, 0, 0.1 * as_float(bytes_at(raw, 0, 8)))


def bits_of_a_float(out: Any, raw: Any, n: int) -> None:
    store(out, 0, as_float(bytes_at(raw, 0, 8)) & 1)


def floats_beside_integers(out: Any, raw: Any, n: int) -> None:
    store(out, 0, as_float(bytes_at(raw, 0, 8) * np.float32(0.5)))


def different_lengths(out: Any, raw: Any, n: int) -> None:
    store(out, 0, as_float(bytes_at(raw, 0, 8) + bytes_at(raw, 0, 4)))


def integers_stored(out: Any, raw: Any, n: int) -> None:
    store(out, 0, bytes_at(raw, 0, 8))


def doubles_chosen(out: Any, raw: Any, n: int) -> None:
    store(out, 0, where(bytes_at(raw, 0, 8), 0.1, 0.2))


def unequal_halves(out: Any, raw: Any, n: int) -> None:
    store(out, 0, as_float(concat(bytes_at(raw, 0, 8), bytes_at(raw, 0, 4))))


def a_count_that_is_no_number(out: Any, raw: Any, n: int) -> None:
    store(out, 0, as_float(bytes_at(raw, 0, n)))


@pytest.mark.parametrize(
    "wrong",
    [
        doubles_beside_floats, bits_of_a_float, floats_beside_integers, different_lengths,
        integers_stored, doubles_chosen, unequal_halves, a_count_that_is_no_number,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_kernel_that_rounds_twice_or_mixes_kinds_does_not_compile(wrong: Any) -> None:
    with pytest.raises(NumbaError):
        compiled(wrong)(np.empty(8, np.float32), RAW, 8)
