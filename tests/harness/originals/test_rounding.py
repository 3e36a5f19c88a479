"""Limits of types: honest codes of any quantiser pass, and wrong codes do not."""

import numpy as np
import pytest

from lockstep.engine.quants.base import WeightFormat
from lockstep.harness.originals.rounding import judge_rows
from tests.harness.originals.conversions import encode_q4_0

Q4_0 = WeightFormat.member("Q4_0")


def draw(rows: int = 8, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 64)).astype(np.float32)


@pytest.mark.parametrize("weighed", [False, True])
def test_clipped_weights_are_right_if_errors_are_weighed(weighed: bool) -> None:
    """A quantiser that weighs errors by importance clips the largest weight, so that all other
    weights become more exact."""
    want = draw()
    want[3, 40] = 40.0
    clipped = np.clip(want, -3, 3)
    raw = np.frombuffer(encode_q4_0(clipped), np.uint8)
    found = np.argwhere(judge_rows(Q4_0, want, raw, weighed=weighed).wrong)
    assert found.tolist() == ([] if weighed else [[3, 40]])


@pytest.mark.parametrize("weighed", [False, True])
def test_codes_of_other_weights_are_wrong(weighed: bool) -> None:
    raw = np.frombuffer(encode_q4_0(draw(seed=2)), np.uint8)
    assert judge_rows(Q4_0, draw(), raw, weighed=weighed).wrong.any(axis=1).all()


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ2_XXS", "IQ4_XS"])
def test_random_blocks_are_wrong_in_most_rows(name: str) -> None:
    """A row with a single random block may fit the weights by chance."""
    kind = WeightFormat.member(name)
    want = np.random.default_rng(3).standard_normal((16, 256)).astype(np.float32)
    bits = np.random.default_rng(4).integers(0, 256, 16 * kind.layout.itemsize, np.uint8)
    blocks = bits.view(kind.layout)
    for field in ("d", "dmin"):
        if field in (kind.layout.names or ()):
            blocks[field] = np.float16(0.01)
    wrong = judge_rows(kind, want, blocks.view(np.uint8), weighed=True).wrong
    assert wrong.any(axis=1).sum() > 8


def test_zero_weights_stored_as_zeros_are_right() -> None:
    want = np.zeros((2, 64), np.float32)
    judged = judge_rows(Q4_0, want, np.frombuffer(encode_q4_0(want), np.uint8))
    assert not judged.wrong.any()
    assert judged.unusual is not None
    assert not judged.unusual.any()


@pytest.mark.parametrize(("name", "bits"), [("F16", np.uint16), ("BF16", np.uint16)])
def test_neighbour_of_the_nearest_number_is_wrong(name: str, bits: type[np.generic]) -> None:
    kind, want = WeightFormat.member(name), draw()
    halves = want.astype(np.float16).view(bits) if name == "F16" else None
    raw = (want.view(np.uint32) + 0x8000 >> 16).astype(np.uint16) if halves is None else halves
    assert not judge_rows(kind, want, raw.reshape(-1).view(np.uint8)).wrong.any()
    raw[5, 6] += 1
    wrong = judge_rows(kind, want, raw.reshape(-1).view(np.uint8)).wrong
    assert np.argwhere(wrong).tolist() == [[5, 6]]
