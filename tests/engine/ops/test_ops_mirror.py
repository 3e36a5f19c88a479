"""The mirror adds ggml's roundings to the reference, and no others."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lockstep.engine.ops.attention import like
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.products import activation_format
from lockstep.engine.ops.reference import ReferenceOps, RopeParams
from tests.engine.ops.test_ops_reference import floats, weight_of

REFERENCE, MIRROR = ReferenceOps(), Mirror()
FULL = np.tri(3, 5, 2, dtype=bool)
IDS = np.array([[0, 1], [1, 1], [1, 0]], np.int32)

EQUAL: dict[str, Callable[[ReferenceOps], Any]] = {
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


def test_mirror_rounds_ties_as_its_build() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :2] = 127, 2.5  # the step is 1, so a tie goes to the even step, or away from zero
    weight = weight_of("Q8_0", (2, 32))
    x86, generic = Mirror(), Mirror(generic=("Q8_0",))
    assert x86.activations(x, weight)[0, 1] == 2
    assert generic.activations(x, weight)[0, 1] == 3
    assert Mirror(generic=("Q8_1",)).activations(x, weight)[0, 1] == 2


DIFFERENT: dict[str, Callable[[ReferenceOps], Any]] = {
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
def test_mirror_and_reference_are_equal_if_ggml_rounds_nothing(
    ask: Callable[[ReferenceOps], Any],
) -> None:
    assert ask(MIRROR).tobytes() == ask(REFERENCE).tobytes()


@pytest.mark.parametrize("ask", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_mirror_and_reference_differ_where_ggml_rounds(ask: Callable[[ReferenceOps], Any]) -> None:
    ours, theirs = ask(MIRROR), ask(REFERENCE)
    assert not np.array_equal(ours, theirs)
    np.testing.assert_allclose(ours, theirs, atol=0.05)  # both compute the same op


@pytest.mark.parametrize("type_name", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_product_uses_the_converted_activations(type_name: str) -> None:
    weight, x = weight_of(type_name, (5, 64)), floats(1, 3, 64)
    converted = activation_format(weight.format).convert(x).values
    assert not np.array_equal(converted, x)
    values = converted.astype(np.float32)
    assert np.array_equal(values, converted)  # no bit is lost, so the products must be equal
    assert np.array_equal(MIRROR.linear(x, weight), REFERENCE.linear(values, weight))


def test_a_product_without_rows_is_empty_for_every_format() -> None:
    for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0"):
        out = MIRROR.linear(np.empty((0, 64), np.float32), weight_of(name, (5, 64)))
        assert out.shape == (0, 5)


def test_rope_angle_is_multiplied_up_in_float32() -> None:
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
    assert np.abs(exact[0] - np.cos(expected)).max() > 2.0**-20  # the error of the recursion


def test_queries_and_weights_are_converted_to_the_cache_type() -> None:
    x = np.array([2049, 2051, 65519, 65520, -1e30, 2.0**-25, 1.5 * 2.0**-25, -0.0], np.float32)
    expected = np.array([2048, 2052, 65504, np.inf, -np.inf, 0, 2.0**-24, -0.0], np.float32)
    assert like(x, np.zeros(0, np.float16)).tobytes() == expected.tobytes()
    assert like(x, np.zeros(0, np.float32)) is x
