"""Diagnosis of engines that read parts of a file wrongly, on models that show this."""

from pathlib import Path

import pytest

from lockstep.engine.gguf.fields import DEFAULT_ALIGNMENT, pad_to
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.catalogue.models import architecture_of, model_for
from lockstep.harness.catalogue.views import LOGITS, TEXT, View
from tests.harness.diagnosis.test_diagnosis import CATALOGUE, diagnosed, names, runs

ALIGNMENT = "mutant:alignment-ignored"


def test_aligned_model_has_data_beyond_the_default_alignment(tmp_path: Path) -> None:
    with GgufFile.open(model_for("aligned", tmp_path)) as file:
        assert file.data_offset > pad_to(file.header_end, DEFAULT_ALIGNMENT)


@pytest.mark.parametrize("view", [LOGITS, TEXT], ids=lambda view: view.name)
def test_diagnosis_names_an_ignored_alignment(view: View, tmp_path: Path) -> None:
    model_for("aligned", tmp_path)
    known = (ALIGNMENT, "mutant:data-not-padded", *CATALOGUE)
    found = runs(diagnosed(ALIGNMENT, tmp_path, model="aligned", view=view, known=known))
    assert (found.status, names(found)) == ("named", [ALIGNMENT])


@pytest.mark.parametrize(
    ("shows_on", "architecture"),
    [
        ("f32", "llama"),
        ("aligned", "llama"),
        ("arch:llama:Q4_K", "llama"),
        ("arch:gpt2", "gpt2"),
        ("bert-cls", "bert"),
        ("qwen2-deeper", "qwen2"),
        ("phi3-long-factors", "phi3"),
        ("phi3-short-factors", "phi3"),
    ],
)
def test_mistakes_of_the_architecture_are_tried_as_near_ones(
    shows_on: str, architecture: str
) -> None:
    assert architecture_of(shows_on) == architecture
