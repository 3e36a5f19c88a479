"""Bounds far above the errors get a note, and right bounds get no note."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.node import Node
from lockstep.engine.ops.near import Expected
from lockstep.harness.shadow.judge import ShadowJudge, Tally, reach_of
from lockstep.harness.shadow.notes import ELEMENTS, note_of
from lockstep.harness.synth.gguf_writer import write_gguf
from tests.shadow_nodes import BUILD, node, normal, params

X, Y, WIDE = normal(1, 40, 64), normal(2, 40, 64), normal(3, 30, 64)
SILU = (X.astype(np.float64) / (1 + np.exp(-X.astype(np.float64)))).astype(np.float32)


def in_float32(op: str) -> Node:
    if op == "SILU":
        return node(op, X / (1 + np.exp(-X)), X)
    if op == "MUL_MAT":
        return node(op, Y @ WIDE.T, WIDE, Y)
    mean = np.mean(X * X, axis=-1, keepdims=True, dtype=np.float32)
    return node(op, X * (np.float32(1) / np.sqrt(mean + np.float32(1e-5))), X, held=params(1e-5))


class Inflated(ShadowJudge):
    """A count of roundings that is a thousand times too large."""

    def expect(self, node: Node) -> tuple[Expected, Any]:
        expected, actual = super().expect(node)
        return replace(expected, allowed=np.asarray(expected.allowed) * 1000), actual


@pytest.fixture
def file(tmp_path: Path) -> GgufFile:
    path = tmp_path / "none.gguf"
    write_gguf(path, {"general.architecture": ("STR", "llama")}, [])
    return GgufFile.open(path)


def tally(judge: ShadowJudge, shown: Node) -> Tally:
    judge(shown)
    ((_, found),) = judge.by_op()
    assert found.compared == 1
    assert judge.findings == []
    return found


@pytest.mark.parametrize("op", ["SILU", "MUL_MAT", "RMS_NORM"])
def test_inflated_bound_gets_a_note_and_an_honest_bound_does_not(op: str, file: GgufFile) -> None:
    honest = tally(ShadowJudge(file, BUILD), in_float32(op))
    assert honest.free >= ELEMENTS
    assert note_of(op, honest.free, honest.reach, honest.worst) == ""
    wide = tally(Inflated(file, BUILD), in_float32(op))
    assert "too wide to show a fault" in note_of(op, wide.free, wide.reach, wide.worst)


def test_an_op_in_higher_precision_gets_a_note(file: GgufFile) -> None:
    found = tally(ShadowJudge(file, BUILD), node("SILU", SILU, X))
    assert "elements are correctly rounded" in note_of("SILU", found.free, found.reach, found.worst)


def test_few_elements_get_no_note() -> None:
    assert note_of("SILU", ELEMENTS - 1, 0.0, 0.0) == ""
    assert note_of("SILU", ELEMENTS, 0.0, 0.0) != ""


def test_bit_exact_op_gets_no_note(file: GgufFile) -> None:
    found = tally(ShadowJudge(file, BUILD), node("ADD", X + Y, X, Y))
    assert (found.free, found.reach) == (0, 0.0)
    assert reach_of(X, X, np.abs(X) * 2.0**-23, 2.0**-24) == (
        0,
        0.0,
    )  # the value is rounded once, as the truth is
    assert reach_of(X, X[:1], 1.0, 2.0**-24) == (0, 0.0)


def test_reach_is_relative_to_a_geometric_mean() -> None:
    ones = np.ones((1, 1, 1, 8))
    free, reach = reach_of(ones, ones + 6 * 2.0**-24, 36 * 2.0**-24, 2.0**-24)
    assert (free, reach) == (8, pytest.approx(1.0))
