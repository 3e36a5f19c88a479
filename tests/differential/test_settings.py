"""User settings, and quantised caches of our engine compared with llama.cpp's."""

from pathlib import Path

import pytest

from lockstep.harness.check.oracle_form import OracleForm
from lockstep.harness.check.settings import settings_named
from lockstep.harness.exit_codes import BadInput
from lockstep.harness.honest.coded_caches import HONEST_CACHES
from lockstep.harness.mutants.coded_caches import WRONG_CACHES
from lockstep.harness.records import Verdict
from lockstep.harness.runs.second_look import FORM
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.differential.test_adapters import plan_for, statuses, verdicts_of

TYPES = ("Q8_0", "Q4_0", "BF16")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with heads of 64 elements, which llama.cpp rotates before it quantises
    them."""
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    write_llama(LlamaRecipe(n_layer=2, n_embd=128, n_head=2, n_head_kv=1), path)
    return path


def found_with(model: Path, engine: str, text: str, *suites: str) -> list[Verdict]:
    return verdicts_of(plan_for(model, engine, *suites, preset=settings_named(text), adapters=()))


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        *(("reference", f"cache={kind}") for kind in TYPES),
        ("fast", "cache=Q8_0"),
        ("fast", "cache=BF16"),
        ("replay", "default,cache_k=Q5_1,cache_v=Q4_1"),
        ("reference", "cache_k=Q5_0"),
    ],
)
def test_quantised_cache_agrees(model: Path, engine: str, text: str) -> None:
    found = found_with(model, engine, text, "logits", "trace")
    assert statuses(found) <= {"agreed", "not-applicable"}
    assert [each.status for each in found if each.suite == "logits"] == ["agreed"]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", WRONG_CACHES)
def test_wrong_cache_is_found_by_logits(model: Path, name: str, kind: str) -> None:
    assert "diverged" in statuses(found_with(model, name, f"cache={kind}", "logits"))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", HONEST_CACHES)
def test_honest_cache_is_not_accused(model: Path, name: str, kind: str) -> None:
    assert statuses(found_with(model, name, f"cache={kind}", "logits")) == {"agreed"}


def test_unrotated_heads_agree_with_llama_cpp_without_rotation(model: Path) -> None:
    (found,) = found_with(model, "honest:cache-unturned", "cache=Q4_0", "logits")
    assert found.detail[FORM] == OracleForm.UNTURNED.name.lower()


def test_cache_type_is_refused_if_its_blocks_are_larger_than_a_head(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_llama(LlamaRecipe(n_layer=1, n_embd=64, n_head=4), path)
    with pytest.raises(BadInput):
        found_with(path, "reference", "cache=Q8_0", "metadata")
