"""Slices and lenses in llama.cpp: they load, and both engines agree on them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lockstep.harness.blackbox import tied_lenses
from lockstep.harness.blackbox.asking import SliceAsker
from lockstep.harness.blackbox.bisection import outside
from lockstep.harness.blackbox.layers import of_layer
from lockstep.harness.blackbox.lenses import lenses_of
from lockstep.harness.blackbox.looking import through
from lockstep.harness.blackbox.slices import NO_END, WINDOW, n_layers
from lockstep.harness.cli import app
from lockstep.harness.shadow.models import make_variants
from tests.black_boxes import asker_of
from tests.models import builtin


def asker_for(arch: str, folder: Path, quant: str = "F32", engine: str = "reference") -> SliceAsker:
    (path,) = make_variants([arch], folder, quant=quant)
    return asker_of(path, folder / "made", oracle="llama.cpp", engine=engine)


@pytest.mark.parametrize("arch", ["llama", "qwen3", "gemma3", "gemma2"])
def test_slices_load_and_our_engine_gives_the_same_logits(arch: str, tmp_path: Path) -> None:
    asker = asker_for(arch, tmp_path)
    n = n_layers(asker.file)
    rows = [*outside(asker), of_layer(asker, 0, n), of_layer(asker, n - 1, n)]
    assert [row.answer.status for row in rows] == ["agreed"] * 4


def test_slice_keeps_the_role_of_a_layer(tmp_path: Path) -> None:
    """The sixth layer of gemma3 has no window and another rope base. The second layer of gemma2 has
    no window. Both layers have the same tensor names as their neighbours."""
    sixth, second = asker_for("gemma3", tmp_path), asker_for("gemma2", tmp_path)
    assert (sixth.role(4), sixth.role(5)) == ({}, {WINDOW: 0})
    assert (second.role(0), second.role(1)) == ({}, {WINDOW: NO_END})


def test_wrong_part_of_a_layer_without_window_is_named(tmp_path: Path) -> None:
    asker = asker_for("gemma3", tmp_path, engine="mutant:rope-half-split")
    found = of_layer(asker, 5, 6)
    assert [part.name for part in found.parts] == ["attention: rotation"]


@pytest.mark.parametrize(
    ("arch", "quant"),
    [
        *(("qwen3", "Q4_1"), ("gemma3", "Q8_0")),
        *((arch, "Q8_0") for arch in tied_lenses.ARCHITECTURES),
        # these have a scale or a cap
        *((arch, "Q8_0") for arch in ("granite", "minicpm", "minicpm3", "grok")),
        # these have no slices of one layer
        *((arch, "Q8_0") for arch in ("lfm2", "qwen35", "llama4", "gemma4")),
    ],
)
def test_llama_cpp_shows_every_weight_through_a_lens(arch: str, quant: str, tmp_path: Path) -> None:
    asker = asker_for(arch, tmp_path, quant=quant)
    (first, *_), left_out = lenses_of(asker.file, asker.layers_to_load)
    found = through(asker, first)
    assert (found.answer.status, left_out) == ("agreed", [])


def test_model_refused_by_llama_cpp_accuses_neither_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gemma2 never has an output matrix."""
    monkeypatch.setattr(tied_lenses, "ARCHITECTURES", ())
    asker = asker_for("gemma2", tmp_path, quant="Q8_0")
    first, *_ = lenses_of(asker.file)[0]
    found = through(asker, first).answer
    assert found.status == "not-compared"
    assert "llama.cpp" in found.summary


@pytest.mark.parametrize(("engine", "code"), [("reference", 0), ("mutant:missing-scale", 1)])
def test_command_names_layer_and_part(engine: str, code: int, tmp_path: Path) -> None:
    options = ["--engine", engine, "--black-box", "--tokens", "4", "--json"]
    options += ["--report", str(tmp_path / "reports")]
    model = str(builtin("f32", tmp_path))
    result = CliRunner().invoke(app, ["bisect", model, *options])
    assert result.exit_code == code, result.output
    report = json.loads(result.stdout)
    assert report["exit_code"] == code
    named = {part["name"] for row in report["slices"] for part in row["parts"]}
    assert named == (
        {"attention: scores: queries, keys as they are kept, rotation or scale"} if code else set()
    )
    assert report["whole"]["status"] == ("diverged" if code else "agreed")
