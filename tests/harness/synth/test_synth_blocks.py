"""Seeded weights of every type have pinned bytes, the requested size, and only legal codes."""

import hashlib

import numpy as np
import pytest

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.types import TYPES, type_by_name
from lockstep.engine.quants.base import WeightFormat
from lockstep.engine.registry import import_members
from lockstep.harness.synth.blocks import UE4M3, ue4m3
from lockstep.harness.synth.generator import MAKERS, NO_SCALE, stream, tensor_bytes

import_members("lockstep.engine.quants")
N = 1 << 14
# N weights with spread 1/8 from seed 3. Other machines must make these bytes.
SHA256 = {
    "F64": "74d9b185f8476ded",
    "F32": "730cbb48f299f489",
    "F16": "b2dcfdc0470dfe04",
    "BF16": "00374479a55d2cf3",
    "Q8_0": "caf9d4421514e6d9",
    "Q4_0": "7c7e94cebd579faa",
    "Q1_0": "eb85e0ea967603a6",
    "Q2_0": "a42f74883aed05b6",
    "Q4_1": "1f4f5b50baea4cfb",
    "Q5_0": "44b1c6b5189177be",
    "Q5_1": "6188ec9dfefe86d2",
    "Q2_K": "64ce66a47aff12f5",
    "Q3_K": "291dfaf383327fc8",
    "Q4_K": "39ccc6543a6bc238",
    "Q5_K": "cd87702afc56adb8",
    "Q6_K": "7763b5c92241471d",
    "IQ1_S": "2e68c6edb3c28246",
    "IQ2_XXS": "832747189cfed959",
    "IQ2_XS": "fc2d024ad01abe73",
    "IQ2_S": "ac817135a2695868",
    "IQ3_XXS": "d213d14b302e552a",
    "IQ3_S": "452c2c5623b5aa83",
    "IQ4_NL": "6816c8d866572d8c",
    "IQ4_XS": "74885b2ca1dae0b2",
    "TQ1_0": "60f0fbfcec0e53ab",
    "TQ2_0": "78c0629b246f497b",
    "IQ1_M": "2c08be6f5e4bf44e",
    "MXFP4": "558547cc8d31118a",
    "NVFP4": "039ba3c6b7dda08f",
}


def made(type_name: str, n: int, sigma: float, seed: int = 3) -> bytes:
    return b"".join(tensor_bytes(stream(seed, "pinned"), type_name, n, sigma))


def decoded(type_name: str, n: int, sigma: float) -> np.ndarray:  # type: ignore[type-arg]
    raw = np.frombuffer(made(type_name, n, sigma), np.uint8)
    return WeightFormat.member(type_name).dequantize(raw).astype(np.float64)


@pytest.mark.parametrize("type_name", MAKERS)
def test_seed_gives_the_same_bytes_on_every_machine(type_name: str) -> None:
    assert hashlib.sha256(made(type_name, N, 0.125)).hexdigest()[:16] == SHA256[type_name]


@pytest.mark.parametrize("sigma", [1.0, 0.0625, 0.01])
@pytest.mark.parametrize("type_name", MAKERS)
def test_weights_are_finite_and_of_the_requested_size(type_name: str, sigma: float) -> None:
    values = decoded(type_name, 1 << 16, sigma)
    assert np.isfinite(values).all()
    # scales of 8 bits have large steps
    assert values.std() == pytest.approx(sigma, rel=0.1 if type_name == "NVFP4" else 0.04)
    assert np.abs(values).max() < 6 * sigma


@pytest.mark.parametrize("type_name", MAKERS)
def test_tensor_in_two_chunks_has_the_right_size(type_name: str) -> None:
    kind = type_by_name(type_name)
    n = (1 << 20) // kind.block * kind.block + 2 * kind.block
    assert len(made(type_name, n, 1.0)) == n // kind.block * kind.bytes


def test_every_type_with_scales_can_be_written() -> None:
    assert MAKERS.keys() == {k.name for k in TYPES.values()} - {*NO_SCALE, "Q8_1", "Q8_K"}


@pytest.mark.parametrize("type_name", NO_SCALE)
def test_integers_are_refused_with_the_reason(type_name: str) -> None:
    with pytest.raises(Unsupported, match=f"'{type_name}': an integer has no scale"):
        made(type_name, 256, 1.0)


# --- codes that no quantiser writes -----------------------------------------------------------


def fields_of(type_name: str) -> np.ndarray:  # type: ignore[type-arg]
    raw = np.frombuffer(made(type_name, N, 0.125), np.uint8)
    return raw.view(WeightFormat.member(type_name).layout)


def test_two_bits_of_tq2_0_hold_three_codes() -> None:
    codes = (fields_of("TQ2_0")["qs"][..., None] >> np.arange(0, 8, 2)) & 3
    assert set(codes.reshape(-1).tolist()) == {0, 1, 2}


def test_bytes_of_tq1_0_are_five_digits_of_base_three() -> None:
    legal = {(value * 256 + 242) // 243 for value in range(243)}
    assert set(fields_of("TQ1_0")["qs"].reshape(-1).tolist()) == legal
    assert set(fields_of("TQ1_0")["qh"].reshape(-1).tolist()) <= legal


def test_eight_bit_scales_are_never_nan() -> None:
    assert fields_of("NVFP4")["d"].max() < 0x7F
    assert 0 < fields_of("MXFP4")["e"].min() <= fields_of("MXFP4")["e"].max() < 0xFE
    assert (np.diff(UE4M3) > 0).all()
    assert (ue4m3(0x38), ue4m3(0x7E), ue4m3(1)) == (0.5, 224.0, 2.0**-10)


@pytest.mark.parametrize("type_name", [n for n in MAKERS if type_by_name(n).bytes > 8])
def test_every_byte_except_the_scales_has_many_values(type_name: str) -> None:
    raw = np.frombuffer(made(type_name, 1 << 17, 0.125), np.uint8)
    by_place = raw.reshape(-1, type_by_name(type_name).bytes)
    kinds = np.array([len(np.unique(column)) for column in by_place.T])
    assert (kinds < 16).sum() <= 4  # the upper bytes of at most two scales
