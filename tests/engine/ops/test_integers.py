"""Integer products equal products of decoded numbers; numbers without integer steps are decoded."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.activations.base import F64
from lockstep.engine.kernels.integers import products as kernel
from lockstep.engine.ops import integers, products
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.weights import Weight
from tests.all_types import MATRICES
from tests.engine.ops.test_ops_reference import floats, weight_of

COLUMNS = 1024
QUANTISED = [kind for kind in MATRICES if products.is_in_blocks(kind)]
BY_INTEGERS = [kind for kind in QUANTISED if integers.takes(kind)]
# formats whose scales are spread over the block, or are not F16
BY_FLOATS = {"IQ1_M", "MXFP4", "NVFP4"}
BUILD = Build(lanes=16)
every = pytest.mark.parametrize("kind", BY_INTEGERS, ids=lambda kind: kind.name)
Found = tuple[NDArray[np.float64], NDArray[np.float64]]  # the product, and its size


def seen(x: F32, weight: Weight) -> tuple[F64, F64 | None]:
    """Return the activations as the product reads them, and their sums."""
    return Mirror().activations(x, weight), Mirror().sums(x, weight)


def by_floats(
    acts: F64, sums: F64 | None, weight: Weight, monkeypatch: pytest.MonkeyPatch
) -> Found:
    with monkeypatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(integers, "takes", lambda _: False)
        value, size = products.added_up(acts, sums, weight, BUILD, np.float64)
    return value.astype(np.float64), size


def by_integers(acts: F64, sums: F64 | None, weight: Weight) -> Found:
    with np.errstate(all="ignore"):
        value, size = products.added_up(acts, sums, weight, BUILD, np.float64)
    return value.astype(np.float64), size


def were_integers(acts: F64, weight: Weight) -> bool:
    kind = weight.format
    group, minimum = products.activation_format(kind).summed, products.minimum_of(kind)
    rows = slice(0, weight.shape[0])
    right = integers.rows_of(weight, rows, products.run_of(kind), group, minimum)
    return right is not None and products.whole_steps(acts, weight, BUILD) is not None


def test_formats_with_one_scale_are_multiplied_by_integers() -> None:
    assert {kind.name for kind in QUANTISED} - {kind.name for kind in BY_INTEGERS} == BY_FLOATS


def test_wrong_decoder_is_not_replaced_by_a_right_decoder() -> None:
    """The wrong decoder uses the scale of the previous block, which is right if all scales are
    one."""

    class Late(WeightFormat.member("Q8_0")):  # type: ignore[misc]
        @classmethod
        def dequantize_into(cls, raw: NDArray[np.uint8], out: F32) -> None:
            blocks = raw.copy().view(cls.layout)
            blocks["d"] = np.roll(blocks["d"], 1)
            super().dequantize_into(blocks.view(np.uint8), out)

    right = weight_of("Q8_0", (9, COLUMNS), seed=8)
    wrong = Weight("w", Late, right.shape, right.raw)
    acts, sums = seen(floats(9, 6, COLUMNS), right)
    assert not np.allclose(by_integers(acts, sums, wrong)[0], by_integers(acts, sums, right)[0])


@every
@pytest.mark.parametrize(("tokens", "rows"), [(5, 3), (16, 8), (37, 21)])
def test_integer_product_equals_that_of_decoded_numbers(
    kind: type[WeightFormat], tokens: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = weight_of(kind.name, (rows, COLUMNS), seed=rows)
    acts, sums = seen(floats(tokens, tokens, COLUMNS), weight)
    assert were_integers(acts, weight)
    value, size = by_integers(acts, sums, weight)
    expected, expected_size = by_floats(acts, sums, weight, monkeypatch)
    assert value.any()
    assert (np.abs(value - expected) <= 2.0**-48 * size).all()
    # the size in float products is slightly larger on purpose
    assert (size <= expected_size).all()
    assert (size >= expected_size * (1 - 2.0**-11)).all()


@every
def test_activation_without_integer_steps_is_multiplied_as_float(
    kind: type[WeightFormat], monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = weight_of(kind.name, (9, COLUMNS), seed=2)
    acts, sums = seen(floats(8, 6, COLUMNS), weight)
    sizes = np.abs(acts[4]).argsort()
    # the largest value determines the scale, so its block has none
    for tipped in (sizes[COLUMNS // 2], sizes[-1]):
        other = acts.copy()
        other[4, tipped] *= 1 + 2.0**-9
        assert were_integers(other, weight) or tipped == sizes[-1]
        value, size = by_integers(other, sums, weight)
        expected, _ = by_floats(other, sums, weight, monkeypatch)
        assert (np.abs(value - expected) <= 2.0**-48 * size).all()
        assert not np.allclose(value[4], by_integers(acts, sums, weight)[0][4], rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("kind", "field"),
    [(kind, f) for kind in BY_INTEGERS for f in ("d", "m", "dmin") if f in kind.layout.names],
    ids=lambda part: part if isinstance(part, str) else part.name,
)
@pytest.mark.parametrize("scale", [0.0, -1.0, 6e-8, 65504.0, np.inf, np.nan])
def test_unusual_scales_equal_decoded_numbers(
    kind: type[WeightFormat], field: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = weight_of(kind.name, (9, COLUMNS), seed=3)
    raw = weight.raw.copy()
    raw.view(kind.layout)[field][1] = scale
    other = Weight("w", kind, weight.shape, raw)
    acts, sums = seen(floats(9, 6, COLUMNS), weight)
    assert were_integers(acts, other) == bool(np.isfinite(scale))
    value, size = by_integers(acts, sums, other)
    expected, _ = by_floats(acts, sums, other, monkeypatch)
    assert (np.isnan(value) == np.isnan(expected)).all()
    some = np.isfinite(expected)
    assert (value[~some & ~np.isnan(value)] == expected[~some & ~np.isnan(value)]).all()
    assert (np.abs(value[some] - expected[some]) <= 2.0**-48 * size[some]).all()


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_integer_products_have_nan_where_float_products_have_it(
    type_name: str, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = weight_of(type_name, (9, COLUMNS), seed=4)
    acts, sums = seen(floats(9, 6, COLUMNS), weight)
    other = acts.copy()
    other[2, 7] = wrong
    value, _ = by_integers(other, sums, weight)
    expected, _ = by_floats(other, sums, weight, monkeypatch)
    assert not np.isfinite(expected[2]).any()
    assert np.array_equal(np.isnan(value), np.isnan(expected))
    assert np.isfinite(np.delete(value, 2, axis=0)).all()


def test_activations_of_another_format_are_multiplied_as_floats() -> None:
    weight = weight_of("Q8_0", (9, COLUMNS), seed=5)
    assert products.whole_steps(floats(9, 6, COLUMNS).astype(np.float64), weight, BUILD) is None


def test_steps_that_would_overflow_are_multiplied_as_floats() -> None:
    """The sums have room for 256 steps of 16 bits."""
    weight = weight_of("Q6_K", (8, COLUMNS), seed=6)
    assert integers.rows_of(weight, slice(0, 8), 256, 16, None) is not None
    assert integers.rows_of(weight, slice(0, 8), 1 << 15, 16, None) is None


def products_of(
    rows: NDArray[Any],
    weights: NDArray[np.float32],
    steps: NDArray[Any],
    starts: NDArray[np.int32],
    scales: NDArray[np.float64],
) -> list[float]:
    out, alone, sizes = np.zeros((3, len(rows), steps.shape[2]))
    words, far = rows.view(np.int32), np.abs(weights)
    kernel(words, weights, steps, starts, scales, out, far, sizes)
    kernel(words, weights, steps, starts, scales, alone, far, np.zeros((0, 0)))
    assert (out == alone).all()
    found: list[float] = np.concatenate([out, sizes]).reshape(-1).tolist()
    return found


def test_magnitudes_are_those_of_the_products() -> None:
    """Magnitudes of all bytes are right, even of the byte for -128, whose magnitude no int8 can
    hold."""
    rng = np.random.Generator(np.random.Philox(key=8))
    codes = np.arange(8 * 64, dtype=np.int64).reshape(8, 64) % 256
    fours = rng.integers(-127, 128, (2, 8, 16, 4)).astype(np.int8)
    weights, scales = rng.standard_normal((8, 2)).astype(np.float32), rng.random((2, 16))
    nothing = np.zeros(scales.shape, np.int32)
    found = products_of(codes.astype(np.uint8), weights, fours, nothing, scales)
    far = np.abs(fours.astype(np.int64)).transpose(0, 1, 3, 2).reshape(2, 32, 16)
    sums = np.einsum("brk,bkt->brt", np.abs(codes - 128).reshape(8, 2, 32).transpose(1, 0, 2), far)
    by = np.abs(weights.astype(np.float64)).T[:, :, None] * scales[:, None]
    assert found[8 * 16 :] == (sums[0] * by[0] + sums[1] * by[1]).reshape(-1).tolist()
