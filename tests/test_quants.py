"""Weight formats against gguf-py's tables and decoders, conversions against the library's own."""

import ctypes
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from engine.errors import MalformedFile, Unsupported
from engine.ggml_types import type_by_id
from engine.quants.base import F32, WeightFormat
from engine.quants.bf16 import BF16
from engine.quants.f16 import F16
from engine.quants.q4_0 import Q4_0
from engine.quants.q8_0 import Q8_0
from engine.registry import import_members

import_members("engine.quants")
FORMATS = sorted(WeightFormat.family.values(), key=lambda kind: kind.type_id)
CONVERTERS = [F16, BF16, Q8_0]
some = settings(max_examples=30, derandomize=True, deadline=None)


@pytest.fixture(scope="module")
def gguf() -> Any:
    return pytest.importorskip("gguf", reason="no gguf-py: tables and decoders were not compared")


# --- layouts and decoders -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_ids_and_sizes_are_those_of_gguf_py(kind: type[WeightFormat], gguf: Any) -> None:
    type_id = gguf.GGMLQuantizationType[kind.name]
    assert kind.type_id == type_id
    assert (kind.weights, kind.layout.itemsize) == gguf.GGML_QUANT_SIZES[type_id]


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_ids_and_sizes_are_those_of_our_own_table(kind: type[WeightFormat]) -> None:
    entry = type_by_id(kind.type_id)
    assert (entry.name, entry.block, entry.bytes) == (
        kind.name, kind.weights, kind.layout.itemsize
    )  # fmt: skip
    assert WeightFormat.named(kind.vec_dot_type).round_activations is not None


def same(a: F32, b: F32) -> bool:
    """Bit for bit, but any NaN is as good as another."""
    return a.shape == b.shape and bool(
        ((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all()
    )


def decoded_by_gguf_py(gguf: Any, name: str, raw: NDArray[np.uint8]) -> F32:
    with np.errstate(all="ignore"):
        found: F32 = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
    return found.reshape(-1)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
@given(blocks=st.integers(1, 40), seed=st.integers(0, 2**32 - 1))
@some
def test_any_bytes_decode_as_gguf_py_decodes_them(
    kind: type[WeightFormat], gguf: Any, blocks: int, seed: int
) -> None:
    raw = Generator(Philox(seed)).integers(0, 256, blocks * kind.layout.itemsize, np.uint8)
    assert same(kind.dequantize(raw), decoded_by_gguf_py(gguf, kind.name, raw))


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_each_of_the_65536_patterns_decodes_as_gguf_py_decodes_it(name: str, gguf: Any) -> None:
    raw = np.arange(65536, dtype="<u2").view(np.uint8)
    assert same(WeightFormat.named(name).dequantize(raw), decoded_by_gguf_py(gguf, name, raw))


class SwapsNibbles(Q4_0):
    @staticmethod
    def decode(blocks: NDArray[np.void]) -> F32:
        d = blocks["d"].astype(np.float32)[:, None]
        return d * (np.hstack([blocks["qs"] >> 4, blocks["qs"] & 0x0F]).astype(np.float32) - 8)


class InterleavesNibbles(Q4_0):
    @staticmethod
    def decode(blocks: NDArray[np.void]) -> F32:
        return Q4_0.decode(blocks).reshape(-1, 2, 16).transpose(0, 2, 1).reshape(-1, 32)


class ForgetsTheOffset(Q4_0):
    @staticmethod
    def decode(blocks: NDArray[np.void]) -> F32:
        return Q4_0.decode(blocks) + 8 * blocks["d"].astype(np.float32)[:, None]


class UnsignedBytes(Q8_0):
    @staticmethod
    def decode(blocks: NDArray[np.void]) -> F32:
        d = blocks["d"].astype(np.float32)[:, None]
        return d * blocks["qs"].view(np.uint8).astype(np.float32)


class ScaleAsBf16(Q8_0):
    @staticmethod
    def decode(blocks: NDArray[np.void]) -> F32:
        bits = blocks["d"].copy().view(np.uint16).astype(np.uint32)
        return (bits << 16).view(np.float32)[:, None] * blocks["qs"].astype(np.float32)


class ScaleLast(Q8_0):
    layout = np.dtype([("qs", "i1", 32), ("d", "<f2")])


class TruncatesSubnormals(F16):
    @staticmethod
    def decode(blocks: NDArray[np.void]) -> F32:
        found = F16.decode(blocks)
        return np.where(np.abs(found) < 2.0**-14, np.float32(0), found)


WRONG = (
    SwapsNibbles, InterleavesNibbles, ForgetsTheOffset, UnsignedBytes, ScaleAsBf16, ScaleLast,
    TruncatesSubnormals,
)  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_decoder_is_caught_by_the_same_comparison(
    wrong: type[WeightFormat], gguf: Any
) -> None:
    raw = Generator(Philox(1)).integers(0, 256, 200 * wrong.layout.itemsize, np.uint8)
    assert not same(wrong.dequantize(raw), decoded_by_gguf_py(gguf, wrong.name, raw))


@pytest.mark.parametrize(
    "kind", [k for k in FORMATS if k.layout.itemsize > 1], ids=lambda kind: kind.name
)
def test_a_partial_block_is_refused_with_its_place(kind: type[WeightFormat]) -> None:
    size = kind.layout.itemsize
    with pytest.raises(
        MalformedFile, match=f"{kind.name} needs whole {size}-byte blocks, got"
    ) as e:
        kind.dequantize(np.zeros(2 * size + 1, np.uint8))
    assert (e.value.kind, e.value.offset) == ("partial-block", 2 * size)


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Unsupported, match=r"no WeightFormat named 'Q9_9' \(known: .*Q4_0, Q8_0"):
        WeightFormat.named("Q9_9")


# --- activations ----------------------------------------------------------------------------------


class CpuTraits(ctypes.Structure):
    """`struct ggml_type_traits_cpu`, as far as it is read here."""

    _fields_ = (("from_float", ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, ctypes.c_int64)),)


@cache
def from_float(type_id: int) -> Any:
    """The library's own conversion: floats, bytes, count."""
    pytest.importorskip("llama_cpp", reason="no llama_cpp: conversions of activations not compared")
    from harness.adapters._llama_cpp_lib import library

    find = library().ggml.ggml_get_type_traits_cpu
    find.restype, find.argtypes = ctypes.POINTER(CpuTraits), (ctypes.c_int,)
    return find(type_id).contents.from_float


def converted_by_ggml(kind: type[WeightFormat], row: F32) -> F32:
    """What a row is for the product: converted, and read back by our decoder, which is tested."""
    row = np.ascontiguousarray(row)
    raw = np.zeros(row.size // kind.weights * kind.layout.itemsize, np.uint8)
    from_float(kind.type_id)(row.ctypes.data, raw.ctypes.data, row.size)
    return kind.dequantize(raw)


def awkward(kind: type[WeightFormat]) -> dict[str, F32]:
    """Rows of 64 or more that break careless conversions."""
    g = Generator(Philox(7))
    fits = (g.integers(-254, 255, 256) / 2).astype(np.float32).reshape(-1, 32)
    fits[:, 5] = 127  # the scale of Q8_0 is 1, and half of the values are ties
    halves = np.arange(0, 0x7C00, 97, dtype=np.uint16).view(np.float16).astype(np.float32)[:320]
    middle = (halves[1:] + halves[:-1]) / 2
    return {
        "zeros": np.zeros(64, np.float32),
        "negative zeros": np.full(64, -0.0, np.float32),
        "ties": fits.reshape(-1),
        "half-way between halves": np.resize(middle, 320),
        "half-way between bf16": (
            (g.integers(0, 0x7F80, 320).astype(np.uint32) << 16) | 0x8000
        ).view(np.float32),
        "subnormal floats": (g.standard_normal(64) * 1e-40).astype(np.float32),
        "127 / max overflows": (g.uniform(-1, 1, 64) * 3e-37).astype(np.float32),
        "subnormal halves": (g.standard_normal(64) * 1e-6).astype(np.float32),
        "beyond half": (g.standard_normal(64) * 1e5).astype(np.float32),
        "scale beyond half": (g.standard_normal(64) * 1e9).astype(np.float32),
        "largest floats": np.resize(np.array([3.4028235e38, -3.4e38, 1, 1e-45], "f4"), 64),
        "infinities": np.resize(np.array([np.inf, 1, -np.inf, 0, 2], "f4"), 64),
        "one NaN": np.where(np.arange(320) % 33 == 0, np.nan, g.standard_normal(320)).astype("f4"),
        "all bits": g.integers(0, 2**32, 3200, dtype=np.uint32).view(np.float32),
    }


AWKWARD = list(awkward(Q8_0))


@pytest.mark.parametrize("row", AWKWARD)
@pytest.mark.parametrize("kind", CONVERTERS, ids=lambda kind: kind.name)
def test_awkward_activations_are_converted_as_the_library_converts_them(
    kind: type[WeightFormat], row: str
) -> None:
    x = awkward(kind)[row]
    assert same(kind.round_activations(x), converted_by_ggml(kind, x))


@pytest.mark.parametrize("kind", CONVERTERS, ids=lambda kind: kind.name)
@given(
    seed=st.integers(0, 2**32 - 1), blocks=st.integers(1, 8), exponent=st.integers(-45, 38),
)  # fmt: skip
@some
def test_random_activations_are_converted_as_the_library_converts_them(
    kind: type[WeightFormat], seed: int, blocks: int, exponent: int
) -> None:
    x = Generator(Philox(seed)).standard_normal(32 * blocks)
    with np.errstate(over="ignore"):
        row = (x * 10.0**exponent).astype(np.float32)
    assert same(kind.round_activations(row), converted_by_ggml(kind, row))


def q8_0_with(x: F32, *, tie: Any = np.rint, half: bool = True, exact: bool = True) -> F32:
    blocks = x.reshape(-1, 32)
    d = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    stored = d.astype(np.float16).astype(np.float32) if half else d
    by = np.float32(1) / (d if exact else stored)
    return (tie(blocks * by) * stored).astype(np.float32).reshape(-1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tie": lambda v: np.trunc(v + np.copysign(np.float32(0.5), v))},
        {"tie": np.trunc},
        {"half": False},
        {"exact": False},  # divides by the scale that is stored
    ],
    ids=["ties away from zero", "truncates", "keeps a float scale", "divides by the half"],
)
def test_a_wrong_conversion_to_q8_0_is_caught(wrong: dict[str, Any]) -> None:
    rows = np.concatenate([awkward(Q8_0)["ties"], Generator(Philox(3)).standard_normal(3200)])
    x = rows.astype(np.float32)
    assert not same(q8_0_with(x, **wrong), converted_by_ggml(Q8_0, x))
