"""`run` says where a greedy choice was no choice."""

import json
from pathlib import Path

import numpy as np
import pytest

from harness.cli import app
from harness.quick import generate
from harness.ties import ties_between
from tests.models import builtin, written

SMALL = {"seed": 1, "n_layer": 1, "n_embd": 16, "n_ff": 16}


def flat(folder: Path) -> Path:
    """A model whose logits are all zero: the weights of its head are."""
    from engine.gguf_file import GgufFile

    path = written(folder, **SMALL)
    with GgufFile.open(path) as file:
        info = file.tensors["output.weight"]
        at = file.data_offset + info.offset
    raw = bytearray(path.read_bytes())
    raw[at : at + info.n_bytes] = bytes(info.n_bytes)
    path.write_bytes(raw)
    return path


def test_a_tie_is_told_beside_the_text_and_in_json(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["run", str(flat(tmp_path)), "--prompt", "a", "-n", "2", "--engine", "reference"]
    with pytest.raises(SystemExit):
        app(command)
    assert "note: token 0 is 0, and 1 is as likely: 0 apart" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        app([*command, "--json"])
    said = json.loads(capfd.readouterr().out)
    assert [tie["token"] for tie in said["ties"]] == [0, 1]
    assert said["ties_looked_for_in"] == 2


def test_a_clear_choice_needs_no_word(tmp_path: Path) -> None:
    model = builtin("f32", tmp_path)
    assert generate(model, "reference", "exact", "Once", 4, lambda _: None)["ties"] == []


def test_a_choice_within_twice_the_engines_own_noise_is_a_tie() -> None:
    row = np.array([[0.0, 1.0, 1.5]], np.float32)
    off = row + np.array([[9.0, 0.25, 0.0]], np.float32)
    assert [t.other for t in ties_between([2], row, off)] == [1]
    assert ties_between([2], row, row + np.float32(0.2)) == []
