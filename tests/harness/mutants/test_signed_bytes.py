"""Engines with a typical mistake of languages with signed bytes: a shift keeps the sign, because
the mask after the shift (`& 15`) was forgotten. The tests compare them with loops as written in
such languages."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.quants.base import WeightFormat
from lockstep.harness.mutants.formats import WRONG
from lockstep.harness.mutants.parts.changed import WrongFormat

Block = Any  # one element of a format's layout
Signed = dict[str, list[int]]


def signed(block: Block) -> Signed:
    """Return the bytes as Java reads them."""
    return {
        name: np.atleast_1d(block[name]).view(np.int8).tolist()
        for name in block.dtype.names
        if block[name].dtype.itemsize == 1
    }


def q4_0(block: Block) -> list[float]:
    d, q = float(block["d"]), signed(block)["qs"]
    return [d * ((b & 15) - 8) for b in q] + [d * ((b >> 4) - 8) for b in q]


def q4_k(block: Block, *, shifted_scales: bool) -> list[float]:
    d, dmin, b = float(block["d"]), float(block["dmin"]), signed(block)
    s, q = b["scales"], b["qs"]
    out = []
    for group in range(8):
        scale, minimum = s[group % 8] & 63, s[(group + 4) % 12] & 63
        if group >= 4:
            top = s[group - 4] >> 6 if shifted_scales else s[group - 4] >> 6 & 3
            scale = s[group + 4] & 15 | top << 4
            minimum = s[group + 4] >> 4 & 15 | (s[group] >> 6 & 3) << 4
        for i in range(32):
            byte = q[32 * (group // 2) + i]
            high = byte >> 4 & 15 if shifted_scales else byte >> 4
            out.append(d * scale * (high if group % 2 else byte & 15) - dmin * minimum)
    return out


def q6_k(block: Block) -> list[float]:
    d, b = float(block["d"]), signed(block)
    out = [0.0] * 256
    for half in range(2):
        ql, qh = b["ql"][64 * half :], b["qh"][32 * half :]
        for i in range(32):
            for quarter in range(4):
                low = ql[32 * (quarter % 2) + i]
                low = low & 15 if quarter < 2 else low >> 4
                value = (low | (qh[i] >> 2 * quarter & 3) << 4) - 32
                at = 128 * half + 32 * quarter + i
                out[at] = d * b["scales"][at // 16] * value
    return out


def blocks(kind: str) -> NDArray[Any]:
    """Return random blocks whose scales are powers of two, so that float32 is exact."""
    layout = WeightFormat.member(kind).layout
    rng = np.random.default_rng(7)
    made = rng.integers(0, 256, 6 * layout.itemsize, dtype=np.uint8).view(layout)
    for name in {"d", "dmin"} & set(layout.names or ()):
        made[name] = np.exp2(rng.integers(-2, 3, len(made))).astype(np.float16)
    return made


@pytest.mark.parametrize(
    ("mutant", "loop"),
    [
        (WRONG["mutant:q4-0-high-nibbles-sign-extended"], q4_0),
        (
            WRONG["mutant:q4-k-high-nibbles-sign-extended"],
            lambda block: q4_k(block, shifted_scales=False),
        ),
        (WRONG["mutant:q4-k-scales-sign-extended"], lambda block: q4_k(block, shifted_scales=True)),
        (WRONG["mutant:q6-k-high-nibbles-sign-extended"], q6_k),
    ],
)
def test_wrong_engine_reads_like_a_loop_with_signed_bytes(
    mutant: type[WrongFormat], loop: Any
) -> None:
    raw = blocks(mutant.kind)
    expected = np.array([loop(block) for block in raw])
    size = expected.size
    right, wrong = np.empty(size, np.float32), np.empty(size, np.float32)
    WeightFormat.member(mutant.kind).unpack(raw.view(np.uint8), right)
    mutant.wrong().unpack(raw.view(np.uint8), wrong)
    np.testing.assert_array_equal(wrong, expected.reshape(-1))
    assert (wrong != right).mean() > 0.1
