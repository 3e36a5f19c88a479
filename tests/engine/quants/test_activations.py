"""Conversion of activations: the library's code, its generic C code and ours give equal bytes."""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from lockstep.engine.activations.base import GENERIC, VARIANTS, X86, ActivationFormat, rounded_away
from lockstep.engine.activations.bf16 import BF16Activations
from lockstep.engine.activations.f16 import F16Activations
from lockstep.engine.activations.q8_0 import Q8_0Activations
from lockstep.engine.activations.q8_1 import Q8_1Activations
from lockstep.engine.activations.q8_k import Q8_KActivations
from lockstep.engine.errors import EngineError, Unsupported
from lockstep.engine.gguf.types import type_by_name
from lockstep.engine.quants.base import F32
from lockstep.engine.registry import import_members
from lockstep.harness.runs.doctor import rounding_rows

import_members("lockstep.engine.activations")
FORMATS = sorted(ActivationFormat.family.values(), key=lambda kind: kind.type_id)
GENERIC_C = {"Q8_0": "quantize_row_q8_0_ref", "Q8_1": "quantize_row_q8_1_ref",
             "Q8_K": "quantize_row_q8_K_ref"}  # fmt: skip
BOTH = [(kind, X86) for kind in FORMATS] + [
    (kind, GENERIC) for kind in FORMATS if kind.name in GENERIC_C
]
some = settings(max_examples=30, derandomize=True, deadline=None)
ABSENT = "no llama_cpp: conversions of activations were not compared with the library's"
N = 40 * 256


def by_the_library(kind: type[ActivationFormat], variant: str, x: F32) -> NDArray[np.uint8]:
    """Return llama.cpp's bytes of x, made by its code for this processor or by its plain C code."""
    pytest.importorskip("llama_cpp", reason=ABSENT)
    from lockstep.harness.adapters.llama_cpp.activations import convert_by_library
    from lockstep.harness.adapters.llama_cpp.lib import library

    if variant == X86:
        return convert_by_library(library(), kind, x)
    function = getattr(library().ggml, GENERIC_C[kind.name])
    function.restype, function.argtypes = None, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    out = np.zeros(x.size // kind.block * kind.layout.itemsize, np.uint8)
    function(x.ctypes.data, out.ctypes.data, x.size)
    return out


def same(ours: NDArray[Any], theirs: NDArray[np.uint8]) -> bool:
    """Compare field by field; the sign of a NaN does not matter."""
    other = theirs.view(ours.dtype).reshape(ours.shape)
    for name in ours.dtype.names or (None,):
        a, b = (ours, other) if name is None else (ours[name], other[name])
        if a.dtype.kind == "f":
            if not np.array_equal(a, b, equal_nan=True):
                return False
        elif not np.array_equal(a, b):
            return False
    return True


@cache
def awkward() -> dict[str, F32]:
    """Return rows that break careless conversions."""
    g = Generator(Philox(7))
    fits = (g.integers(-254, 255, N) / 2).reshape(-1, 32)
    fits[:, 5] = 127  # the scale is 1, and half of the values are ties
    halves = np.arange(0, 0x7C00, 3, dtype=np.uint16).view(np.float16).astype(np.float32)[:N]
    rows: dict[str, NDArray[Any]] = {
        "zeros": np.zeros(N),
        "negative zeros": np.full(N, -0.0),
        "ties": fits.reshape(-1),
        "half-way between halves": np.resize((halves[1:] + halves[:-1]) / 2, N),
        "half-way between bf16": (
            (g.integers(0, 0x7F80, N).astype(np.uint32) << 16) | 0x8000
        ).view(np.float32),
        "subnormal floats": g.standard_normal(N) * 1e-40,
        "127 / max overflows": g.uniform(-1, 1, N) * 3e-37,
        "subnormal halves": g.standard_normal(N) * 1e-6,
        "beyond half": g.standard_normal(N) * 1e5,
        "scale beyond half": g.standard_normal(N) * 1e9,
        "largest floats": np.resize([3.4028235e38, -3.4e38, 1, 1e-45], N),
        "infinities": np.resize([np.inf, 1, -np.inf, 0, 2], N),
        "one NaN": np.where(np.arange(N) % 33 == 0, np.nan, g.standard_normal(N)),
        "a largest of either sign": np.resize([5, -5, 2.5, 1.25], N),
        "all bits": g.integers(0, 2**32, N, dtype=np.uint32).view(np.float32),
    }  # fmt: skip
    with np.errstate(all="ignore"):
        return {name: row.astype(np.float32) for name, row in rows.items()}


@pytest.mark.parametrize(("kind", "variant"), BOTH, ids=lambda value: getattr(value, "name", value))
def test_awkward_activations_give_the_librarys_bytes(
    kind: type[ActivationFormat], variant: str
) -> None:
    others = [
        name
        for name, x in awkward().items()
        if not same(kind.quantise(x, variant), by_the_library(kind, variant, x))
    ]
    assert others == []


@pytest.mark.parametrize(("kind", "variant"), BOTH, ids=lambda value: getattr(value, "name", value))
@given(seed=st.integers(0, 2**32 - 1), exponent=st.integers(-45, 38))
@some
def test_random_activations_give_the_librarys_bytes(
    kind: type[ActivationFormat], variant: str, seed: int, exponent: int
) -> None:
    with np.errstate(over="ignore"):
        x = (Generator(Philox(seed)).standard_normal(1024) * 10.0**exponent).astype(np.float32)
    assert same(kind.quantise(x, variant), by_the_library(kind, variant, x))


@pytest.mark.parametrize("kind", [k for k in FORMATS if k.block == 1], ids=lambda kind: kind.name)
@pytest.mark.parametrize("n", [1, 7, 33, 63])
def test_floats_after_the_last_whole_vector_are_converted(
    kind: type[ActivationFormat], n: int
) -> None:
    x = np.ascontiguousarray(awkward()["all bits"][:n])
    assert same(kind.quantise(x), by_the_library(kind, X86, x))


# --- wrong conversions that the same rows catch -----------------------------------------------


def q8_0_with(x: F32, round_to: Callable[[F32], F32], levels: float, stored: bool) -> NDArray[Any]:
    blocks = x.reshape(-1, 32)
    d = np.abs(blocks).max(axis=-1) / np.float32(levels)
    made = np.zeros(len(blocks), Q8_0Activations.layout)
    made["d"] = d
    by = made["d"].astype(np.float32) if stored else d
    made["qs"] = np.clip(round_to(blocks / by[:, None]), -128, 127)
    return made


@pytest.mark.parametrize(
    ("round_to", "levels", "stored"),
    [
        (rounded_away, 127, False),
        (np.trunc, 127, False),
        (np.floor, 127, False),
        (np.rint, 128, False),
        (np.rint, 127, True),
    ],
    ids=["away from zero", "truncated", "floored", "max / 128", "divided by the stored half"],
)
def test_wrong_conversion_to_q8_0_differs_from_the_library(
    round_to: Callable[[F32], F32], levels: float, stored: bool
) -> None:
    x = np.concatenate([awkward()["ties"], Generator(Philox(3)).standard_normal(3200)])
    x = x.astype(np.float32)
    assert not same(q8_0_with(x, round_to, levels, stored), by_the_library(Q8_0Activations, X86, x))


@pytest.mark.parametrize("kind", [Q8_0Activations, Q8_1Activations])
@pytest.mark.parametrize("row", ["ties", "subnormal halves"])
def test_variants_differ_in_ties_and_in_the_reciprocal(
    kind: type[ActivationFormat], row: str
) -> None:
    x = awkward()[row] if row == "ties" else Generator(Philox(3)).standard_normal(1 << 16)
    x = x.astype(np.float32)
    ours, other = (kind.quantise(x, variant)["qs"] for variant in VARIANTS)
    assert not np.array_equal(ours, other)
    assert np.abs(ours.astype(int) - other).max() == 1


def sums_of(blocks: NDArray[Any]) -> NDArray[np.float64]:
    values = Q8_1Activations.read(blocks).values
    return values.reshape(*blocks.shape, 32).sum(axis=-1)


def test_sum_of_a_q8_1_block_uses_the_scale_before_rounding() -> None:
    x = Generator(Philox(3)).standard_normal(3200).astype(np.float32)
    blocks = Q8_1Activations.quantise(x)
    carried = Q8_1Activations.read(blocks).sums
    assert carried is not None
    d = np.abs(x.reshape(-1, 32)).max(axis=-1) / np.float32(127)
    by_hand = (d * blocks["qs"].sum(axis=-1, dtype=np.int32).astype(np.float32)).astype(np.float16)
    assert np.array_equal(carried, by_hand)
    assert not np.array_equal(carried, sums_of(blocks).astype(np.float16))
    exact = x.reshape(-1, 32).astype(np.float64).sum(axis=-1)
    assert not np.array_equal(carried, exact.astype(np.float16))


# --- formats ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_ids_and_sizes_match_our_own_table(kind: type[ActivationFormat]) -> None:
    entry = type_by_name(kind.name)
    assert (entry.id, entry.block, entry.bytes) == (kind.type_id, kind.block, kind.layout.itemsize)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_blocks_are_independent_and_lie_along_the_last_axis(kind: type[ActivationFormat]) -> None:
    x = Generator(Philox(4)).standard_normal((3, 512)).astype(np.float32)
    alone = [[kind.convert(x[t, i : i + 256]).values for i in (0, 256)] for t in range(3)]
    assert np.array_equal(kind.convert(x).values, np.array(alone).reshape(3, 512))


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_empty_activations_give_no_blocks(kind: type[ActivationFormat]) -> None:
    assert kind.convert(np.empty((0, 256), np.float32)).values.shape == (0, 256)


@pytest.mark.parametrize(
    "kind", [Q8_0Activations, Q8_1Activations, Q8_KActivations], ids=lambda kind: kind.name
)
def test_part_of_a_block_is_refused(kind: type[ActivationFormat]) -> None:
    with pytest.raises(EngineError, match=f"257 activations are not whole {kind.name} blocks of"):
        kind.quantise(np.zeros((2, 257), np.float32))


def test_unknown_format_is_refused_with_the_known_formats() -> None:
    with pytest.raises(Unsupported, match=r"no activation format named 'Q9_9' \(known: .*Q8_K"):
        ActivationFormat.member("Q9_9")


def values(kind: type[ActivationFormat], *first: float) -> list[float]:
    """Return the first values of a block of zeros after conversion."""
    block = np.zeros(256, np.float32)
    block[: len(first)] = first
    found: list[float] = kind.convert(block).values[: len(first)].tolist()
    return found


@pytest.mark.parametrize(
    "kind", [Q8_0Activations, Q8_1Activations, Q8_KActivations], ids=lambda kind: kind.name
)
def test_ties_go_to_even(kind: type[ActivationFormat]) -> None:
    assert values(kind, 127, 0.5, 1.5, 2.5, -0.5, -2.5) == [127, 0, 2, 2, 0, -2]


@pytest.mark.parametrize("sign", [1, -1])
def test_largest_element_of_a_q8_k_block_becomes_minus_127(sign: int) -> None:
    block = np.zeros(256, np.float32)
    block[:3] = sign * 2.0, 1.0, -1.0
    (made,) = Q8_KActivations.quantise(block)
    assert made["qs"][0] == -127
    assert made["d"] == np.float32(1) / (np.float32(-127) / np.float32(sign * 2.0))
    assert made["bsums"].tolist() == [int(made["qs"][:16].sum(dtype=int))] + [0] * 15


def test_q8_0_stores_a_coarser_scale_than_its_divisor() -> None:
    d = np.float32(1) / np.float32(127)
    stored = float(np.float16(d))
    assert stored != d
    # 31.4985 steps of the exact scale, or 31.5005 steps of the stored scale
    assert values(Q8_0Activations, 1, 0.24802) == [127 * stored, 31 * stored]
    assert round(0.24802 / stored) == 32


def test_q8_0_keeps_a_block_of_zeros_and_no_negative_zero() -> None:
    assert Q8_0Activations.convert(np.full(64, -0.0, np.float32)).values.tobytes() == bytes(64 * 8)


@pytest.mark.parametrize("largest", [1e-45, 1e-39, 3e-37])
def test_q8_0_of_tiny_values_is_zero_and_not_nan(largest: float) -> None:
    """The factor 127 / max overflows for these values, and the scale, a half, is zero."""
    assert values(Q8_0Activations, largest, -largest, 0) == [0, 0, 0]


def test_the_scale_of_q8_0_overflows_to_infinity() -> None:
    assert values(Q8_0Activations, 65504 * 127) == [65504 * 127]
    assert values(Q8_0Activations, 65536 * 127) == [np.inf]


def test_f16_rounds_ties_to_even_and_overflows_to_infinity() -> None:
    x = [2049, 2051, 65519, 65520, -1e30, 2.0**-25, 1.5 * 2.0**-25, -0.0]
    expected = [2048, 2052, 65504, np.inf, -np.inf, 0, 2.0**-24, -0.0]
    assert (
        np.array(values(F16Activations, *x)).tobytes() == np.array(expected, np.float64).tobytes()
    )


def test_bf16_rounds_ties_to_even_and_keeps_nan_infinity_and_zeros() -> None:
    bits = [0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800000, 0x80000000, 0xFF800001,
            0x7FFFFFFF, 0x00008000]  # fmt: skip
    expected = [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0x7F80, 0x8000, 0xFFC0, 0x7FFF, 0x0000]
    assert BF16Activations.quantise(np.array(bits, np.uint32).view(np.float32)).tolist() == expected
    assert values(BF16Activations, 257, 259, -257) == [256, 260, -256]


def test_doctor_says_how_this_build_rounds_each_format() -> None:
    pytest.importorskip("llama_cpp", reason=ABSENT)
    rows = {name: (says, well) for name, says, well in rounding_rows()}
    assert rows.keys() == {f"{kind.name} activations" for kind in FORMATS}
    assert all(well for _, well in rows.values())
    # exactly one variant; otherwise the test could not distinguish them
    for name in ("Q8_0", "Q8_1"):
        assert rows[f"{name} activations"] == ("rounded as x86 code", True)
