"""Vectors as numba types: every operation against numpy's, bit for bit, and what is refused."""

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
    bits_of,
    bytes_at,
    concat,
    crumbs_of,
    floats_at,
    half_of_bits,
    lookup,
    spread,
    store,
    where,
)
from lockstep.engine.kernels.scales import scales_and_minima
from lockstep.engine.kernels.vectors import I16, half_by_bits

G = Generator(Philox(5))
RAW = G.integers(0, 256, 4099, np.uint8)
FLOATS = np.concatenate(
    [
        np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, -1e-42, 3.4e38], np.float32),
        (G.standard_normal(24) * 10.0 ** G.integers(-3, 4, 24)).astype(np.float32),
    ]
)
COUNTS = (1, 4, 8, 16, 32)
PATTERNS = np.arange(65536, dtype=np.uint16)


def compiled(function: Callable[..., None]) -> Any:
    return njit(nogil=True)(function)


def lanes_of(function: Callable[..., None], count: int, *args: Any) -> NDArray[np.float32]:
    """What a kernel (out, ...) stores, and that it stores nothing else."""
    out = np.full(count + 2, np.float32(-7777))
    compiled(function)(out[1:-1], *args)
    assert out[0] == out[-1] == -7777
    return out[1:-1]


def same(a: Any, b: Any) -> bool:
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    equal = (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))
    return a.shape == b.shape and bool(equal.all())


# --- loads ----------------------------------------------------------------------------------------

LOADS = {
    "bytes_at": "u1", "signed_bytes_at": "i1", "uint32s_at": "<i4",
    "halves_at": "<f2", "floats_at": "<f4",
}  # fmt: skip


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", LOADS)
def test_a_load_takes_so_many_numbers_from_any_address(name: str, count: int) -> None:
    load, kind = getattr(lanes, name), np.dtype(LOADS[name])
    if kind.kind == "f":

        def read(out: Any, raw: Any, at: int) -> None:
            store(out, 0, load(raw, at, count))

    else:

        def read(out: Any, raw: Any, at: int) -> None:
            store(out, 0, as_float(load(raw, at, count)))

    for at in (0, 1, 7, 4099 - kind.itemsize * count):
        expected = np.frombuffer(RAW.tobytes(), kind, count, at).astype(np.float32)
        assert same(lanes_of(read, count, RAW, at), expected)


SCALARS = {
    "byte_at": "u1", "signed_byte_at": "i1", "uint16_at": "<u2", "int16_at": "<i2",
    "uint32_at": "<u4", "int32_at": "<i4", "int64_at": "<i8", "half_at": "<f2", "float_at": "<f4",
    "double_at": "<f8",
}  # fmt: skip


@pytest.mark.parametrize("name", SCALARS)
def test_a_scalar_load_takes_one_number_from_any_address(name: str) -> None:
    load, kind = getattr(lanes, name), np.dtype(SCALARS[name])
    read = njit(lambda raw, at: load(raw, at))
    for at in range(0, 300, 7):
        expected = np.frombuffer(RAW.tobytes(), kind, 1, at)[0]
        assert np.array_equal(read(RAW, at), expected, equal_nan=kind.kind == "f")


def test_floats_are_also_loaded_from_an_array_of_floats_counted_in_floats() -> None:
    table = np.arange(40, dtype=np.float32)
    found = lanes_of(lambda out, t: store(out, 0, floats_at(t, 3, 8)), 8, table)
    assert same(found, table[3:11])


HALVES = PATTERNS.view(np.float16).astype(np.float32)


def all_halves(load: Any) -> NDArray[np.float32]:
    out = np.empty(65536, np.float32)

    def every(out: Any, raw: Any) -> None:
        for i in range(0, 65536, 16):
            store(out, i, load(raw, 2 * i, 16))

    compiled(every)(out, PATTERNS.view(np.uint8))
    return out


def test_every_half_has_its_value() -> None:
    assert same(all_halves(lanes.halves_at), HALVES)


def by_bits(context: Any, builder: Any, bits: Any, to: Any) -> Any:
    return half_by_bits(builder, bits, to)


def test_every_half_has_its_value_on_a_processor_without_an_instruction_for_it() -> None:
    found = all_halves(lanes.load_of(I16, by_bits, "float"))
    assert found.tobytes() == HALVES.tobytes()  # it keeps even the payload of NaN


@pytest.mark.parametrize("from_bits", [True, False])
def test_every_lone_half_has_its_value(from_bits: bool) -> None:
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
ON_INTS = [operator.and_, operator.or_, operator.xor]


@pytest.mark.parametrize("apply", [*ON_BOTH, *ON_INTS], ids=lambda f: f.__name__)
def test_integers_are_combined_lane_by_lane_and_with_a_scalar_on_either_side(apply: Any) -> None:
    a, b = RAW[:16].astype(np.int32), RAW[100:116].astype(np.int32)

    def between(out: Any, raw: Any) -> None:
        store(out, 0, as_float(apply(bytes_at(raw, 0, 16), bytes_at(raw, 100, 16))))

    def left(out: Any, raw: Any) -> None:
        store(out, 0, as_float(apply(bytes_at(raw, 0, 16), 11)))

    def right(out: Any, raw: Any) -> None:
        store(out, 0, as_float(apply(11, bytes_at(raw, 0, 16))))

    assert same(lanes_of(between, 16, RAW), apply(a, b))
    assert same(lanes_of(left, 16, RAW), apply(a, 11))
    assert same(lanes_of(right, 16, RAW), apply(11, a))


def test_shifts_bring_in_zeros_and_each_lane_has_its_own_distance() -> None:
    def shifted(out: Any, raw: Any) -> None:
        x = bytes_at(raw, 0, 8)
        store(out, 0, as_float(x << 3))
        store(out, 8, as_float(x >> 3))
        store(out, 16, as_float(x >> (x & 7)))
        store(out, 24, as_float((x - 256) >> 24))  # a negative number counts as unsigned

    x = RAW[:8].astype(np.int64)
    assert same(
        lanes_of(shifted, 32, RAW), np.concatenate([x << 3, x >> 3, x >> (x & 7), 8 * [255]])
    )


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
    assert not same(found, x.astype(np.float64) * y - z)  # what a contraction would give


def test_minus_changes_the_sign_of_zero_too() -> None:
    assert same(lanes_of(lambda out, x: store(out, 0, -floats_at(x, 0, 32)), 32, FLOATS), -FLOATS)
    found = lanes_of(lambda out, raw: store(out, 0, as_float(-bytes_at(raw, 0, 8))), 8, RAW)
    assert same(found, -RAW[:8].astype(np.int32))


# --- between lanes --------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [8, 16, 32, 64])
def test_bits_come_lowest_first(count: int) -> None:
    value = 0x9D3C_5A87_C0F1_E2B4
    found = lanes_of(
        lambda out, v: store(out, 0, as_float(bits_of(v, count))), count, np.uint64(value)
    )
    assert same(found, [value >> i & 1 for i in range(count)])


def test_pairs_of_bits_come_lowest_first() -> None:
    word = 0xC0F1_E2B4
    found = lanes_of(lambda out, w: store(out, 0, as_float(crumbs_of(w))), 16, word)
    assert same(found, [word >> 2 * i & 3 for i in range(16)])


def test_a_choice_is_made_lane_by_lane_between_lanes_and_scalars() -> None:
    d = np.float32(2.5)

    def chosen(out: Any, raw: Any, x: Any) -> None:
        odd, a = bytes_at(raw, 0, 8) & 1, floats_at(x, 0, 8)
        store(out, 0, where(odd, a, -a))
        store(out, 8, where(odd, d, a))
        store(out, 16, where(odd, d, -d))
        store(out, 24, as_float(where(odd << 5, bytes_at(raw, 0, 8), 3)))

    odd, a = RAW[:8] & 1, FLOATS[:8]
    expected = [
        np.where(odd, a, -a), np.where(odd, d, a), np.where(odd, d, -d), np.where(odd, RAW[:8], 3),
    ]  # fmt: skip
    assert same(lanes_of(chosen, 32, RAW, FLOATS), np.concatenate(expected))


def test_lanes_are_joined_taken_apart_and_spread() -> None:
    def kernel(out: Any, raw: Any, i: int) -> None:
        a = bytes_at(raw, 0, 4)
        store(out, 0, as_float(concat(a, bytes_at(raw, 50, 4))))
        store(out, 8, spread(as_float(a)[i], 4))
        store(out, 12, as_float(spread(a[3], 4)))

    for i in range(4):
        expected = [*RAW[:4], *RAW[50:54], *[RAW[i]] * 4, *[RAW[3]] * 4]
        assert same(lanes_of(kernel, 16, RAW, i), expected)


TABLE = (0, 1, -2, 3, 4, 100, -127, -128, 127, 9, -10, 11, 12, 13, 14, -1)


@pytest.mark.parametrize("count", COUNTS)
def test_a_table_of_sixteen_is_looked_up(count: int) -> None:
    def kernel(out: Any, raw: Any, at: int) -> None:
        store(out, 0, as_float(lookup(TABLE, bytes_at(raw, at, count) & 15)))

    for at in range(0, 64, 16):
        expected = np.array(TABLE)[RAW[at : at + count] & 15]
        assert same(lanes_of(kernel, count, RAW, at), expected)


@pytest.mark.parametrize("kind", ["i1", "u1", "<i2", "<u2", "<i4"])
def test_a_table_in_memory_is_looked_up(kind: str) -> None:
    table = G.integers(0, 2**32, 256).astype(kind)
    found = lanes_of(
        lambda out, raw, t: store(out, 0, as_float(lookup(t, bytes_at(raw, 0, 16)))), 16, RAW, table
    )
    assert same(found, table[RAW[:16]])


def test_a_table_of_floats_is_looked_up() -> None:
    found = lanes_of(
        lambda out, raw, t: store(out, 0, lookup(t, bytes_at(raw, 0, 16) & 31)), 16, RAW, FLOATS
    )
    assert same(found, FLOATS[RAW[:16] & 31])


def test_scales_and_minima_of_six_bits_are_put_together() -> None:
    """Q4_K and Q5_K, spelled out: every bit of the twelve bytes goes where it belongs."""

    def kernel(out: Any, raw: Any, at: int) -> None:
        scales, minima = scales_and_minima(raw, at)
        store(out, 0, as_float(scales))
        store(out, 8, as_float(minima))

    for at in range(0, 240, 12):
        q = RAW[at : at + 12].astype(int)
        scales = [q[j] & 63 for j in range(4)]
        scales += [(q[j + 8] & 15) | (q[j] >> 6) << 4 for j in range(4)]
        minima = [q[j + 4] & 63 for j in range(4)]
        minima += [(q[j + 8] >> 4) | (q[j + 4] >> 6) << 4 for j in range(4)]
        assert same(lanes_of(kernel, 16, RAW, at), scales + minima)


# --- what is refused ------------------------------------------------------------------------------


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
def test_what_would_round_twice_or_mix_kinds_does_not_compile(wrong: Any) -> None:
    with pytest.raises(NumbaError):
        compiled(wrong)(np.empty(8, np.float32), RAW, 8)
