"""Conversions of activations to formats other than llama.cpp's: only known formats are honest."""

from collections.abc import Callable

import numpy as np
import pytest

from lockstep.engine.activations.base import GENERIC, X86
from lockstep.engine.activations.q8_0 import Q8_0Activations
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.products import convert_activations
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.weights import Weight
from lockstep.harness.honest.conversions import Bf16, Int8Blocks, Int8Rows
from lockstep.harness.judging.conversions import builds, conversions, in_bytes, is_type_in_blocks
from lockstep.harness.judging.designs import sums_of_squares
from lockstep.harness.synth.generator import MAKERS, stream


def weight_of(quant: str, rows: int, width: int) -> Weight:
    kind = WeightFormat.member(quant)
    raw = MAKERS[quant](stream(0, quant), rows * width // kind.weights, 1.0)
    return Weight("w", kind, (rows, width), np.frombuffer(raw, np.uint8))


def normal(*shape: int) -> F32:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def is_known(x: F32, shown: F64) -> bool:
    return any(np.array_equal(convert(x), shown) for convert in conversions(every=True))


@pytest.mark.parametrize("convert", list(conversions(every=True)))
def test_batch_without_outputs_has_no_rows(convert: Callable[[F32], F64]) -> None:
    assert convert(normal(0, 96)).shape == (0, 96)


def test_sums_of_no_rows_are_empty() -> None:
    assert sums_of_squares(normal(0, 96), lanes=64, fused=False).shape == (0,)


@pytest.mark.parametrize("engine", [Int8Rows, Int8Blocks, Bf16])
@pytest.mark.parametrize("width", [96, 256, 4096])
def test_conversion_of_an_honest_engine_is_known(engine: type, width: int) -> None:
    x = normal(20, width)
    x[3] = 0
    weight = weight_of("Q8_0", 1, width)
    assert is_known(x, engine.ops().activations(x, weight))


def steps_of(x: F32, most: F64, how: Callable[[F64], F64], number: float = 127) -> F64:
    return np.asarray(how(x / (most / number)) * (most / number))


WRONG: dict[str, Callable[[F32], F64]] = {
    "cut off": lambda x: steps_of(x, np.abs(x).max(axis=-1, keepdims=True), np.trunc),
    "of the largest, not of the magnitude": lambda x: steps_of(
        x, x.max(axis=-1, keepdims=True), np.rint
    ),
    "in seven bits": lambda x: steps_of(x, np.abs(x).max(axis=-1, keepdims=True), np.rint, 63),
    "of all tokens": lambda x: steps_of(x, np.asarray(np.abs(x).max()), np.rint),
    "scales in halves": lambda x: steps_of(
        x,
        (np.abs(x).max(axis=-1, keepdims=True) / 127).astype(np.float16).astype(np.float64) * 127,
        np.rint,
    ),
}


@pytest.mark.parametrize("how", WRONG)
def test_wrong_conversion_matches_no_known_format(how: str) -> None:
    x = normal(20, 256)
    assert not is_known(x, WRONG[how](x))


@pytest.mark.parametrize(
    ("size", "how", "known"), [(16, np.rint, True), (16, np.trunc, False), (24, np.rint, False)]
)
def test_sub_block_scales_are_recognised(size: int, how: Callable[[F64], F64], known: bool) -> None:
    """An engine that converts 16 numbers at a time is more exact than llama.cpp. An earlier version
    accused it."""
    x = normal(20, 96)
    blocks = x.reshape(20, -1, size)
    scales = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    shown = how((blocks / scales).astype(np.float64)) * scales.astype(np.float64)
    assert is_known(x, shown.reshape(x.shape)) == known


@pytest.mark.parametrize("variant", [X86, GENERIC])
def test_q8_0_blocks_are_recognised_for_any_weights(variant: str) -> None:
    """An earlier version accused an engine without Q8_K, which uses Q8_0 for Q4_K too."""
    x = normal(200, 256)
    assert is_known(x, Q8_0Activations.convert(x, variant).values)


HALF_WAY: dict[str, Callable[[F64], F64]] = {
    "to even": np.rint,
    "away from zero": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "up": lambda x: np.floor(x + 0.5),
}


@pytest.mark.parametrize("how", HALF_WAY)
def test_every_way_to_round_midpoints_is_recognised(how: str) -> None:
    x = np.arange(-64, 64, dtype=np.float32)[None] + np.float32(0.5)
    x[:, ::32] = 127  # makes every scale 1
    assert is_known(x, HALF_WAY[how](x.astype(np.float64)))
    assert not is_known(x, np.trunc(x).astype(np.float64))
    assert not is_known(x, np.floor(x).astype(np.float64))


def test_zero_row_stays_and_nan_row_has_no_format() -> None:
    x = np.zeros((2, 64), np.float32)
    x[1, 3] = np.inf
    for convert in conversions(every=True):
        found = convert(x)
        assert not found[0].any()
        assert not np.isfinite(found[1]).all()


def test_last_block_may_be_shorter() -> None:
    x = normal(2, 96)
    assert np.array_equal(in_bytes(x, 64)[:, 64:], in_bytes(x[:, 64:], 0))


def test_only_activations_that_meet_blocks_are_converted() -> None:
    """Engines with their own conversion use it for quantised weights, but not for F32, F16 or
    BF16."""
    x = normal(3, 256)
    build = next(builds(Build(lanes=16)))
    for quant in ("F32", "F16", "BF16"):
        assert np.array_equal(convert_activations(x, weight_of(quant, 2, 256), build).values, x)
        assert not is_type_in_blocks(quant)
    for quant in ("Q8_0", "Q4_K", "IQ2_XXS", "TQ1_0"):
        assert not np.array_equal(convert_activations(x, weight_of(quant, 2, 256), build).values, x)
        assert is_type_in_blocks(quant)
    assert not is_type_in_blocks("I32")
