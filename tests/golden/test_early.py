"""Early nodes of a run show faults that noise hides in the logits of a quantised model."""

from pathlib import Path

import pytest

from lockstep.golden.of_user import regenerate_user
from lockstep.golden.replay import replay
from lockstep.harness.records import Verdict
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.golden.folders import needs_oracle

pytestmark = needs_oracle
NORM, ROTATIONS, RESULT = "attn_norm-0", {"Qcur-0 ROPE", "Kcur-0 ROPE"}, "l_out-0"


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the vectors and the model."""
    folder = tmp_path_factory.mktemp("early")
    model = folder / "quantised.gguf"
    write_llama(LlamaRecipe(seed=3, n_layer=3, quant="Q4_0"), model)
    regenerate_user(folder / "vectors", [model])
    return folder / "vectors", model


def held(engine: str, quantised: tuple[Path, Path]) -> dict[str, Verdict]:
    """Return the verdicts on each matrix of the run, by its name."""
    root, model = quantised
    found = replay(root, engine, [model], only=["run/quantised"])
    return {v.summary.split(":")[0]: v for v in found}


def diverged(found: dict[str, Verdict]) -> set[str]:
    return {name for name, v in found.items() if v.status == "diverged"}


@pytest.mark.parametrize("engine", ["reference", "llama.cpp"])
def test_honest_engine_agrees_with_early_nodes(engine: str, quantised: tuple[Path, Path]) -> None:
    found = held(engine, quantised)
    assert {v.status for v in found.values()} == {"agreed"}
    assert {NORM, RESULT, *ROTATIONS} < found.keys()


def test_wrong_epsilon_hidden_by_logits_is_found_at_the_first_norm(
    quantised: tuple[Path, Path],
) -> None:
    found = held("mutant:wrong-eps", quantised)
    assert NORM in diverged(found)
    assert found["logits"].status == "agreed"


def test_positions_off_by_one_change_rotations_but_no_logit(
    quantised: tuple[Path, Path],
) -> None:
    assert diverged(held("mutant:rope-position-off-by-one", quantised)) == ROTATIONS
