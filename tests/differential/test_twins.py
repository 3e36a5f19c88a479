"""F32 twins in llama.cpp: a twin loads, has the same weights, and conforms closely."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.harness.check.check import Plan
from lockstep.harness.synth.twin import write_twin
from tests.differential.conftest import Checked
from tests.models import written

# the quantised model must have a limit above 1e-4 of the largest logit
CLOSE = 1e-4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("twins")
    model = written(folder, quant="Q4_1", n_layer=1)
    write_twin(model, folder / "twin.gguf")
    return model, folder / "twin.gguf"


def test_llama_cpp_decodes_the_model_to_the_weights_of_the_twin(
    pair: tuple[Path, Path], plan_for: Callable[..., Plan], checked: Checked
) -> None:
    model, twin = pair
    found = checked(plan_for(model, subject_model=twin, suites=("dequant",)))
    assert {v.status for v in found} == {"agreed"}
    assert any(v.summary.startswith("Q4_1 as F32: ") for v in found)


def test_llama_cpp_runs_a_twin_with_a_far_smaller_tolerance(
    pair: tuple[Path, Path], plan_for: Callable[..., Plan], checked: Checked
) -> None:
    allowed = []
    for path in pair:
        suites = ("metadata", "logits")
        found = {v.suite: v for v in checked(plan_for(path, suites=suites, n_tokens=5))}
        assert {v.status for v in found.values()} == {"agreed"}
        allowed.append(found["logits"].detail["allowed_relative"])
    assert allowed[1] < CLOSE < allowed[0]
