"""Rows in a quantised cache: codes computed by hand are accepted, and typical mistakes are
refused."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.types import type_by_name
from lockstep.engine.node import Operand
from lockstep.engine.ops.ggml.base import expect
from lockstep.engine.ops.ggml.stored import codes
from lockstep.engine.ops.near import Expected
from lockstep.harness.judging.compare import mismatch_between
from tests.shadow_nodes import BUILD, node, normal, params

F32 = NDArray[np.float32]
ROWS = normal(5, 3, 64)
IDS = np.array([4, 0, 2], np.int64)


def f(x: float) -> np.float32:
    return np.float32(x)


def centred(block: F32, below: int, sign: int = -1) -> tuple[list[np.float16], list[int]]:
    largest = max(block.tolist(), key=abs)
    d = f(largest) / f(sign * below)
    codes = [min(2 * below - 1, max(0, int(f(x) * (f(1) / d) + f(below + 0.5)))) for x in block]
    return [np.float16(d)], codes


def from_minimum(block: F32, most: int) -> tuple[list[np.float16], list[int]]:
    d = (block.max() - block.min()) / f(most)
    codes = [min(most, int((x - block.min()) * (f(1) / d) + f(0.5))) for x in block]
    return [np.float16(d), np.float16(block.min())], codes


def nibbles(codes: list[int]) -> bytes:
    return bytes((a & 15) | (b & 15) << 4 for a, b in zip(codes[:16], codes[16:], strict=True))


def fifth_bits(codes: list[int]) -> bytes:
    return sum((code >> 4) << i for i, code in enumerate(codes)).to_bytes(4, "little")


def packed(kind: str, block: F32, slip: str) -> bytes:
    below, most = {"Q4_0": (8, 15), "Q5_0": (16, 31)}.get(kind, (0, 31 if "5" in kind else 15))
    sign = 1 if slip == "sign" else -1
    scales, codes = centred(block, below, sign) if below else from_minimum(block, most)
    if slip == "order":
        codes = [code for pair in zip(codes[:16], codes[16:], strict=True) for code in pair]
    if slip == "step":
        codes[7] += 1 if codes[7] < most else -1
    fifth = fifth_bits(codes) if most == 31 else b""
    return np.array(scales).tobytes() + fifth + nibbles(codes)


def stored(kind: str, slip: str = "") -> Expected:
    """Put three rows of two blocks into a cache of five."""
    size = 2 * type_by_name(kind).bytes
    cache = np.zeros((1, 1, 5, size), np.uint8)
    after = cache.copy()
    for row, at in zip(ROWS, IDS, strict=True):
        raw = b"".join(packed(kind, block, slip) for block in row.reshape(2, 32))
        after[0, 0, at] = np.frombuffer(raw, np.uint8)
    made = node("SET_ROWS", np.zeros((5, 64), np.float32), ROWS, IDS)
    into = Operand(name="cache", type=kind, ne=(64, 5, 1, 1), value=cache)
    sources = (*made.sources, into)
    return expect(replace(made, type=kind, value=after, sources=sources), BUILD)


def agrees(found: Expected) -> bool:
    assert found.actual is not None
    return mismatch_between(found.value, found.actual, found.allowed) is None


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_rows_are_stored_as_the_definition_says(kind: str) -> None:
    found = stored(kind)
    assert agrees(found)
    assert np.asarray(found.allowed).mean() < 1e-3  # few values lie between two codes


@pytest.mark.parametrize(
    ("kind", "slip"),
    [
        *(("Q4_0", slip) for slip in ("sign", "order", "step")),
        *(("Q5_0", slip) for slip in ("sign", "order", "step")),
        *((kind, slip) for kind in ("Q4_1", "Q5_1") for slip in ("order", "step")),
    ],
)
def test_small_mistake_in_stored_rows_is_found(kind: str, slip: str) -> None:
    assert not agrees(stored(kind, slip))


def test_unwritten_rows_must_stay_unchanged() -> None:
    assert not np.asarray(stored("Q4_1").allowed)[0, 0, [1, 3]].any()


@pytest.mark.parametrize("fused", [False, True])
def test_value_between_two_codes_may_take_either_code(fused: bool) -> None:
    """The code depends on whether a product and a sum are rounded once or twice."""
    x = np.zeros(32, np.float32)
    x[:2] = -8.0 * np.float32(1.1), np.float32(0.55)
    low, high = codes(x[None], x[:1, None] / np.float32(-8), 8.5, 15)
    inverse = np.float32(1) / (x[0] / np.float32(-8))
    apart, once = x[1] * inverse + np.float32(8.5), np.float32(float(x[1]) * float(inverse) + 8.5)
    assert low[0, 1] <= np.trunc(once if fused else apart) <= high[0, 1]


@pytest.mark.parametrize("op", ["CONT", "CONCAT"])
def test_coded_rows_are_copied_unchanged(op: str) -> None:
    rows = np.arange(2 * 68, dtype=np.uint8).reshape(1, 1, 2, 68)
    part = Operand(name="c", type="Q8_0", ne=(64, 2, 1, 1), value=rows)
    made = node(op, np.zeros((4, 64), np.float32), held=params(1))
    result = np.concatenate([rows, rows], axis=2) if op == "CONCAT" else rows
    sources = (part, part) if op == "CONCAT" else (part,)
    found = expect(replace(made, type="Q8_0", value=result, sources=sources), BUILD)
    assert np.array_equal(found.value, result)
    assert found.allowed == 0.0


def test_storage_type_without_a_definition_is_unsupported() -> None:
    made = node("SET_ROWS", np.zeros((5, 64), np.float32), ROWS, IDS)
    cache = Operand(name="c", type="IQ4_NL", ne=(64, 5, 1, 1), value=np.zeros((1, 1, 5, 36), "u1"))
    coded = replace(made, type="IQ4_NL", value=cache.value, sources=(*made.sources, cache))
    with pytest.raises(Unsupported, match="storing rows as IQ4_NL"):
        expect(coded, BUILD)
