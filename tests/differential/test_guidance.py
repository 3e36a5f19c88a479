"""Guidance: engines compared with two runs of llama.cpp, and wrong ways to guide."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.guidance import guide, log_softmax
from lockstep.harness.mutants.guidance import WRONG_GUIDANCE
from lockstep.harness.records import DEFAULT, EXACT, Settings
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.differential.test_adapters import plan_for, statuses, verdicts_of

CASES = [("reference", EXACT), ("fast", EXACT), ("reference", DEFAULT)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    write_llama(LlamaRecipe(n_layer=2), path)
    return path


def found_for(model: Path, engine: str, preset: Settings = EXACT) -> set[str]:
    return statuses(verdicts_of(plan_for(model, engine, "guidance", preset=preset, adapters=())))


@pytest.mark.parametrize(("engine", "preset"), CASES)
def test_guidance_equals_two_runs_of_llama_cpp(model: Path, engine: str, preset: Settings) -> None:
    assert found_for(model, engine, preset) == {"agreed"}


@pytest.mark.parametrize("name", WRONG_GUIDANCE)
def test_wrong_guidance_is_found(model: Path, name: str) -> None:
    assert len(WRONG_GUIDANCE) >= 10
    assert "diverged" in found_for(model, name)


def test_raw_logits_give_the_same_guidance_up_to_a_constant() -> None:
    main, negative = np.random.default_rng(0).normal(size=(2, 3, 50)).astype(np.float32)
    raw = negative + np.float32(1.5) * (main - negative)
    assert np.allclose(log_softmax(raw), log_softmax(guide(main, negative, 1.5)), atol=1e-5)
