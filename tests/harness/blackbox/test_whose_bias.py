"""Of a bias that is wrong the words say whose it is, in the first layer that has the fault."""

from pathlib import Path

import pytest

from lockstep.harness.blackbox.naming import BIAS
from tests.black_boxes import bisected, model_of_arch

ALL = "the engines agree with biases of zero"


def words_of(path: Path, made: Path, engine: str) -> list[str]:
    found = bisected(path, made, engine=engine)
    parts = [part for row in found.guilty for part in row.parts]
    assert {part.name.rpartition(": ")[2] for part in parts} == {BIAS}
    return [part.words for part in parts]


@pytest.mark.parametrize(
    ("arch", "engine", "whose"),
    [
        ("qwen2", "mutant:query-bias-missing", "attn_q.bias"),
        ("qwen2", "mutant:value-bias-missing", "attn_v.bias"),
        ("gpt2", "mutant:qkv-bias-missing", "attn_qkv.bias"),
    ],
)
def test_it_is_named_once(arch: str, engine: str, whose: str, tmp_path: Path) -> None:
    first, *others = words_of(model_of_arch(arch, tmp_path, {}), tmp_path / "made", engine)
    assert first == f"{ALL}, and with {whose} alone of zero"
    assert set(others) <= {ALL}


def test_of_several_that_are_wrong_none_is_named_alone(tmp_path: Path) -> None:
    path = model_of_arch("qwen2", tmp_path, {})
    words = words_of(path, tmp_path / "made", "mutant:biases-by-order-of-loading")
    assert set(words) == {ALL}
