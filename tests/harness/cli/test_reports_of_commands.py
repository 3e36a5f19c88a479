"""Commands that locate or name a fault write a report, as `check` does."""

import json
from pathlib import Path

import pytest

from lockstep.harness.blackbox.asking import SliceAnswer
from lockstep.harness.blackbox.bisection import BlackBoxBisection
from lockstep.harness.blackbox.layers import LayerRow
from lockstep.harness.blackbox.naming import Part
from lockstep.harness.blackbox.report import verdicts_of
from tests.command_line import Lockstep
from tests.harness.check.test_check import plan_for
from tests.models import builtin

AGREES = SliceAnswer(status="agreed", summary="34 positions agree")
DIFFERS = SliceAnswer(status="diverged", summary="8 of 34 logits differ", worst=0.4, allowed=1e-5)
ROTATION = Part(name="attention: rotation", words="they agree with positions that rotate nothing")


def rows_of(folder: Path) -> list[dict]:
    (report,) = folder.glob("*/report.jsonl")
    assert (report.parent / "report.html").is_file()
    return [json.loads(line) for line in report.read_text().splitlines()]


def test_diagnosis_writes_a_report(lockstep: Lockstep, tmp_path: Path) -> None:
    words = ["builtin:f32", "--engine", "mutant:rope-half-split", "--tokens", "8", "--steps", "4"]
    code = lockstep("diagnose", *words, "--report", tmp_path, "--format", "junit").code
    header, *verdicts, footer = rows_of(tmp_path)
    assert (code, footer["exit_code"]) == (1, 1)
    assert [engine["engine"] for engine in header["engines"]] == ["llama.cpp", words[2]]
    (wrong,) = [row for row in verdicts if row["status"] == "diverged"]
    assert "mutant:rope-half-split" in wrong["summary"]
    assert list(tmp_path.glob("*/junit.xml"))


@pytest.mark.parametrize(("answer", "parts"), [(AGREES, ()), (DIFFERS, (ROTATION,))])
def test_each_probe_model_of_a_black_box_is_a_verdict(
    answer: SliceAnswer, parts: tuple[Part, ...], tmp_path: Path
) -> None:
    row = LayerRow(layer=3, answer=answer, parts=parts)
    found = BlackBoxBisection(rows=(row,), lenses=(), whole=answer, left_out=("a bias: no lens",))
    plan = plan_for(builtin("f32", tmp_path))
    layer, whole, left_out = verdicts_of(plan, found, "lockstep bisect --black-box")
    assert (layer.status, whole.status, left_out.status) == (answer.status,) * 2 + ("not-compared",)
    assert layer.summary.startswith("layer 3, its slice in F32: ")
    assert all(part.name in layer.summary for part in parts)
    assert left_out.summary == "left out: a bias: no lens"


def test_bisection_of_a_black_box_writes_a_report(lockstep: Lockstep, tmp_path: Path) -> None:
    model = tmp_path / "one.gguf"
    lockstep("synth", "-o", model, "--layers", "1", "--width", "32", "--heads", "2")
    words = ["--black-box", "--engine", "mutant:wrong-eps", "--tokens", "4"]
    reports = tmp_path / "reports"
    code = lockstep("bisect", model, *words, "--report", reports).code
    header, *verdicts, footer = rows_of(reports)
    assert (code, footer["exit_code"]) == (1, 1)
    assert [engine["engine"] for engine in header["engines"]] == ["llama.cpp", words[2]]
    assert any("eps" in row["summary"] for row in verdicts if row["status"] == "diverged")
