"""Diagnosis of engines that use one set of LongRoPE factors for any context."""

from pathlib import Path

import pytest

from lockstep.harness.catalogue.models import model_for
from lockstep.harness.catalogue.views import LOGITS
from tests.harness.diagnosis.test_diagnosis import CATALOGUE, diagnosed, names, runs

SHORT, LONG = "mutant:rope-short-factors-alone", "mutant:rope-long-factors-alone"


@pytest.mark.parametrize(
    ("mistake", "model"), [(SHORT, "phi3-long-factors"), (LONG, "phi3-short-factors")]
)
def test_diagnosis_names_the_set_of_factors(mistake: str, model: str, tmp_path: Path) -> None:
    model_for(model, tmp_path)
    known = (SHORT, LONG, "mutant:rope-factors-ignored", *CATALOGUE)
    found = runs(diagnosed(mistake, tmp_path, model=model, view=LOGITS, known=known))
    assert (found.status, names(found)) == ("named", [mistake])
