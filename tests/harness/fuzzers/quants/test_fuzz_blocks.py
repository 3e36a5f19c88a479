"""The parts of the decoder fuzzer: numbered blocks, names for differences, small blocks."""

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.quants.base import WeightFormat
from lockstep.engine.registry import import_members
from lockstep.harness.fuzzers.quants.blocks import Cases, corners, scales_of
from lockstep.harness.fuzzers.quants.differences import Differences, alike, symptom_of
from lockstep.harness.fuzzers.quants.small_blocks import block_in_words, shrink_block

import_members("lockstep.engine.quants")
FORMATS = sorted(WeightFormat.family.values(), key=lambda kind: kind.type_id)
PER_FORMAT = pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
INF, NAN = np.inf, np.nan


# --- cases ----------------------------------------------------------------------------------


@PER_FORMAT
def test_case_is_the_same_for_any_start_of_a_run(kind: type[WeightFormat]) -> None:
    cases = Cases(kind, seed=3)
    parts = [Cases(kind, seed=3).blocks(*span) for span in ((0, 7), (7, 120), (120, 200))]
    assert cases.blocks(0, 200).tobytes() == b"".join(part.tobytes() for part in parts)
    assert Cases(kind, seed=4).blocks(0, 200).tobytes() != cases.blocks(0, 200).tobytes()


@PER_FORMAT
def test_half_of_the_first_cases_are_directed_and_occur_once(
    kind: type[WeightFormat],
) -> None:
    cases = Cases(kind, seed=0)
    n = cases.n_directed
    assert cases.directed_among(0, 1000) == 500
    assert cases.directed_among(1, 1000) == 499
    assert cases.directed_among(0, 4 * n) == n
    assert cases.directed_among(2 * n, 4 * n) == 0


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "IQ1_M", "NVFP4", "F16"])
def test_directed_cases_cover_scale_values_and_every_byte(
    name: str,
) -> None:
    kind = WeightFormat.member(name)
    cases = Cases(kind, seed=0)
    every = cases.directed_blocks(np.arange(cases.n_directed))
    for place in range(kind.layout.itemsize):
        assert len(np.unique(every[:, place])) == 256
    blocks = np.ascontiguousarray(every).view(kind.layout)[:, 0]
    if name == "IQ1_M":
        words = blocks["scales"].astype(np.uint32) >> 12
        values = words[:, 0] | words[:, 1] << 4 | words[:, 2] << 8 | words[:, 3] << 12
        assert len(np.unique(values)) == 1 << 16
    for scale in scales_of(kind) if name != "IQ1_M" else ():
        values = blocks[scale.name].reshape(len(blocks), -1)[:, 0]
        assert len(np.unique(values.view(f"u{scale.width}"))) == 1 << 8 * scale.width


def test_special_values_of_a_half_match_their_names() -> None:
    values = {k: np.array([v], "<u2").view("<f2")[0] for k, v in corners(2).items()}
    assert values["largest"] == 65504
    assert values["one"] == 1
    assert values["minus-least-subnormal"] == -(2.0**-24)
    assert values["largest-subnormal"] < values["least-normal"] == 2.0**-14
    assert np.signbit(values["minus-zero"])
    assert values["minus-infinite"] == -np.inf
    assert all(np.isnan(value) for name, value in values.items() if "nan" in name)


@pytest.mark.parametrize("name", ["F64", "I32", "I64"])
def test_midpoints_between_two_floats_occur(name: str) -> None:
    kind = WeightFormat.member(name)
    raw = Cases(kind, seed=1).blocks(0, 4000)
    values = raw.view(kind.layout).view(kind.layout[0])
    rounded = kind.dequantize(raw)
    near = np.nextafter(rounded, np.float32(0)).astype(np.float64)
    with np.errstate(all="ignore"):
        wide = values.astype(np.float64)
        ties = np.abs(wide - near) == np.abs(wide - rounded.astype(np.float64))
    assert ties.sum() > 100


# --- differences and shrinking --------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "actual", "symptom"),
    [
        ([1, 2], [1, 2], ""),
        ([NAN, 2], [NAN, 2], ""),
        ([NAN, 2], [-NAN, 2], "nan-sign"),
        ([NAN, 2], [1, 2], "nan"),
        ([INF, 2], [-INF, 2], "infinity"),
        ([INF, 2], [3e38, 2], "infinity"),
        ([0, 2], [-0.0, 2], "zero-sign"),
        ([1, 2], [-1, 2], "sign"),
        ([1, 2], [0, 2], "lost"),
        ([1, 2], [2, 1], "order"),
        ([1, 3], [1 + 2.0**-23, 3], "rounding"),
        ([1, 3], [2, 6], "factor"),
        ([1, 3], [5, 7], "offset"),
        ([1, 3], [5, 8], "value"),
    ],
)
def test_symptom_follows_from_two_decodings(
    expected: list[float], actual: list[float], symptom: str
) -> None:
    assert symptom_of(np.array(expected, np.float32), np.array(actual, np.float32)) == symptom


def test_differing_blocks_are_distinguished_from_other_nans() -> None:
    expected = np.array([1, NAN, 3, NAN, 5, 6], np.float32)
    actual = np.array([1, -NAN, 3, NAN, 5, 7], np.float32)
    found = Differences.between(expected, actual, weights=2)
    assert found.values.tolist() == [2]
    assert found.nan_sign.tolist() == [0]


def test_finite_difference_is_never_shrunk_to_a_nan_difference() -> None:
    assert alike("value", "factor")
    assert not alike("value", "nan")
    assert not alike("rounding", "value")
    assert not alike("zero-sign", "sign")


def test_shrinking_ends_if_no_byte_can_be_removed() -> None:
    kind = WeightFormat.member("Q6_K")
    block = Cases(kind, 0).blocks(1, 2)

    def shows(blocks: NDArray[np.uint8]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (blocks[:, 5] & 4 != 0) & (blocks[:, 100] > 20)
        return found

    block[5], block[100] = 0xFF, 0xFF
    small = shrink_block(kind, block.copy(), shows)
    assert np.flatnonzero(small).tolist() == [5, 100]
    assert small[5] == 4
    text = f"ql[5] = 0x04, ql[100] = 0x{small[100]:02x}, all else zero"
    assert block_in_words(kind, small) == text
