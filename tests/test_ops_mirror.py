"""What the mirror adds to the reference: ggml's roundings where it makes them, and no others."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine.ops.mirror import Mirror, like
from engine.ops.reference import Reference, RopeParams
from engine.quants.base import F32, WeightFormat
from engine.quants.bf16 import BF16
from engine.quants.f16 import F16
from engine.quants.q8_0 import Q8_0
from tests.test_ops_reference import floats, weight_of

REFERENCE, MIRROR = Reference(), Mirror()
FULL = np.tri(3, 5, 2, dtype=bool)
IDS = np.array([[0, 1], [1, 1], [1, 0]], np.int32)

EQUAL: dict[str, Callable[[Reference], Any]] = {
    "get_rows": lambda ops: ops.get_rows(weight_of("Q4_0", (4, 32)), np.array([2, 0], np.int32)),
    "linear F32": lambda ops: ops.linear(floats(1, 3, 40), weight_of("F32", (5, 40))),
    "linear of halves F16": lambda ops: ops.linear(
        floats(1, 3, 40).astype("f2").astype("f4"), weight_of("F16", (5, 40))
    ),
    "linear_id F32": lambda ops: ops.linear_id(
        floats(1, 3, 1, 8), weight_of("F32", (2, 5, 8)), IDS
    ),
    "kq F32": lambda ops: ops.kq(floats(2, 3, 4, 8), floats(3, 5, 2, 8)),
    "kqv F32": lambda ops: ops.kqv(abs(floats(4, 4, 3, 5)), floats(5, 5, 2, 8)),
    "soft_max": lambda ops: ops.soft_max(floats(6, 4, 3, 5), 0.25, FULL),
    "rms_norm": lambda ops: ops.rms_norm(floats(7, 3, 8), floats(8, 8), 2.0**-17),
    "swiglu": lambda ops: ops.swiglu(floats(9, 3, 8), floats(10, 3, 8)),
    "add": lambda ops: ops.add(floats(9, 3, 8), floats(10, 3, 8)),
    "mul": lambda ops: ops.mul(floats(9, 3, 8), floats(10, 3, 8)),
    "top_k": lambda ops: ops.top_k(floats(11, 3, 8), 3),
    "pick": lambda ops: ops.pick(floats(11, 3, 8), IDS),
    "normalise": lambda ops: ops.normalise(abs(floats(12, 3, 2))),
    "sum of two experts": lambda ops: ops.sum_experts(floats(13, 3, 2, 8)),
}

DIFFERENT: dict[str, Callable[[Reference], Any]] = {
    **{
        f"linear {name}": lambda ops, name=name: ops.linear(
            floats(1, 3, 64), weight_of(name, (5, 64))
        )
        for name in ("F16", "BF16", "Q8_0", "Q4_0")
    },
    "linear_id Q8_0": lambda ops: ops.linear_id(
        floats(1, 3, 1, 32), weight_of("Q8_0", (2, 5, 32)), IDS
    ),
    "kq F16": lambda ops: ops.kq(floats(2, 3, 4, 8), floats(3, 5, 2, 8).astype("f2")),
    "kqv F16": lambda ops: ops.kqv(abs(floats(4, 4, 3, 5)), floats(5, 5, 2, 8).astype("f2")),
    "flash_attn F16": lambda ops: ops.flash_attn(
        floats(2, 3, 4, 8),
        floats(3, 5, 2, 8).astype("f2"),
        floats(5, 5, 2, 8).astype("f2"),
        0.3,
        FULL,
    ),
    "rope far out": lambda ops: ops.rope(
        floats(2, 1, 2, 64), np.array([30_000], np.int32), RopeParams(64, 10000.0, 1.0, None)
    ),
    "rms_norm with an eps that is no float32": lambda ops: ops.rms_norm(
        floats(7, 64, 8, size=1e-6), floats(8, 8), 1e-12 / 3
    ),
    "sum of four experts": lambda ops: ops.sum_experts(floats(13, 64, 4, 8)),
}


@pytest.mark.parametrize("ask", EQUAL.values(), ids=EQUAL.keys())
def test_mirror_and_reference_are_equal_where_ggml_rounds_nothing_on_the_way(
    ask: Callable[[Reference], Any],
) -> None:
    assert ask(MIRROR).tobytes() == ask(REFERENCE).tobytes()


@pytest.mark.parametrize("ask", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_mirror_and_reference_differ_where_ggml_rounds(ask: Callable[[Reference], Any]) -> None:
    ours, theirs = ask(MIRROR), ask(REFERENCE)
    assert not np.array_equal(ours, theirs)
    np.testing.assert_allclose(ours, theirs, atol=0.05)  # the same op all the same


@pytest.mark.parametrize("type_name", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_a_product_is_that_of_the_converted_activations(type_name: str) -> None:
    weight, x = weight_of(type_name, (5, 64)), floats(1, 3, 64)
    target = WeightFormat.named(weight.format.vec_dot_type)
    assert np.array_equal(
        MIRROR.linear(x, weight), REFERENCE.linear(target.round_activations(x), weight)
    )


def test_a_product_without_rows_is_empty_for_every_format() -> None:
    for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0"):
        out = MIRROR.linear(np.empty((0, 64), np.float32), weight_of(name, (5, 64)))
        assert out.shape == (0, 5)


def test_rope_turns_by_the_angle_that_is_multiplied_up_in_float32() -> None:
    """The recursion by hand, with numpy's float32 scalars."""
    params = RopeParams(8, 12345.0, 0.5, np.array([1, 2, 3, 4], np.float32))
    position, expected = np.float32(31013), []
    step = np.float32(12345.0) ** np.float32(-2 / 8)
    theta = position
    for factor in params.factors if params.factors is not None else ():
        expected.append(float(np.float32(0.5) * (theta / factor)))
        theta = theta * step
    cos, sin = MIRROR.rotations(np.array([31013], np.int32), params)
    np.testing.assert_allclose(cos[0], np.cos(expected), atol=2.0**-23)
    np.testing.assert_allclose(sin[0], np.sin(expected), atol=2.0**-23)
    exact, _ = REFERENCE.rotations(np.array([31013], np.int32), params)
    assert np.abs(exact[0] - np.cos(expected)).max() > 2.0**-20  # what the recursion costs


# --- conversions of activations -------------------------------------------------------------------


def q8_0(*values: float) -> F32:
    """The values that survive in a block that starts with these."""
    block = np.zeros(32, np.float32)
    block[: len(values)] = values
    return Q8_0.round_activations(block)[: len(values)]


def test_q8_0_rounds_ties_to_even() -> None:
    # with 127 in the block the scale is 1, so that the values themselves are rounded
    found = q8_0(127, 0.5, 1.5, 2.5, -0.5, -2.5, -3.5)
    assert found.tolist() == [127, 0, 2, 2, 0, -2, -4]


def test_q8_0_stores_a_sixteenth_bit_less_of_its_scale_than_it_divides_by() -> None:
    d = np.float32(1.0) / np.float32(127)
    stored = np.float32(np.float16(d))
    assert stored != d
    assert q8_0(1.0, 0.25)[0] == np.float32(127) * stored
    # the integer comes from the exact factor: 0.25 * 127 = 31.75
    assert q8_0(1.0, 0.25)[1] == np.float32(32) * stored


def test_q8_0_keeps_a_block_of_zeros_and_knows_no_negative_zero() -> None:
    assert Q8_0.round_activations(np.full(64, -0.0, np.float32)).tobytes() == bytes(256)


@pytest.mark.parametrize("largest", [1e-45, 1e-39, 3e-37])
def test_q8_0_of_next_to_nothing_is_nothing_and_not_nan(largest: float) -> None:
    """127 / max overflows there; the scale, a half, is zero."""
    assert not q8_0(largest, -largest, 0.0).any()


def test_q8_0_blocks_are_independent_and_lie_along_the_last_axis() -> None:
    x = floats(20, 3, 64)
    alone = [[Q8_0.round_activations(x[t, i : i + 32]) for i in (0, 32)] for t in range(3)]
    assert np.array_equal(Q8_0.round_activations(x), np.array(alone).reshape(3, 64))


def test_q8_0_scale_overflows_to_infinity() -> None:
    assert q8_0(65504 * 127.0)[0] == 65504 * 127
    assert q8_0(65536 * 127.0)[0] == np.inf


def test_f16_rounds_ties_to_even_and_overflows_to_infinity() -> None:
    x = np.array([2049, 2051, 65519, 65520, -1e30, 2.0**-25, 1.5 * 2.0**-25, -0.0], np.float32)
    expected = np.array([2048, 2052, 65504, np.inf, -np.inf, 0, 2.0**-24, -0.0], np.float32)
    assert F16.round_activations(x).tobytes() == expected.tobytes()
    assert like(x, np.zeros(0, np.float16)).tobytes() == expected.tobytes()
    assert like(x, np.zeros(0, np.float32)) is x


def test_bf16_rounds_ties_to_even_and_keeps_nan_infinity_and_zeros() -> None:
    bits = [0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800000, 0x80000000, 0xFF800001,
            0x7FFFFFFF, 0x00008000]  # fmt: skip
    expected = [0x3F800000, 0x3F820000, 0x3F810000, 0x7F800000, 0x7F800000, 0x80000000, 0xFFC00000,
                0x7FFF0000, 0x00000000]  # fmt: skip
    found = BF16.round_activations(np.array(bits, np.uint32).view(np.float32))
    assert [f"{x:08X}" for x in found.view(np.uint32)] == [f"{x:08X}" for x in expected]


def half_up(x: F32) -> F32:
    """What a careless engine does instead of ties to even."""
    return np.floor(x + np.float32(0.5))


def test_ties_rounded_up_or_away_from_zero_would_be_noticed() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -2.5, -3.5], np.float32)
    right = q8_0(127, *x)[1:]
    away = np.trunc(x + np.copysign(np.float32(0.5), x))
    assert not np.array_equal(half_up(x), right)
    assert not np.array_equal(away, right)
