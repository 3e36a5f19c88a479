"""A short campaign on vocabularies of each kind: some of llama.cpp's, and the built-in
vocabularies."""

from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.check.check import Plan
from lockstep.harness.fuzzers.base import FuzzPlan, fuzzer_named
from lockstep.harness.mutants.tokenizers import WRONG
from lockstep.harness.records import Verdict
from lockstep.harness.synth.builtin import BUILTIN_VOCABULARIES
from lockstep.harness.synth.llama import write_llama
from tests.differential.conftest import Checked
from tests.plans import plan_of, verdicts_of
from tests.vocabularies import vocabulary_or_skip

KINDS = [kind for kind in BUILTIN_VOCABULARIES if kind != "none"]
# other sizes and pre-tokenizers are in test_tokens_bpe.py; tests/golden tests all 19
OF_LLAMA_CPP = ("baichuan", "llama-spm", "phi-3", "gpt-2", "bert-bge", "gemma-4")
SEED = 4
CASES = 120


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all processes of a test run share."""
    return tmp_path_factory.getbasetemp().parent


def fuzzed(target: str, **changes: Any) -> list[Verdict]:
    plan = FuzzPlan(**{"targets": (target,), "cases": CASES, "seed": SEED, **changes})
    return list(fuzzer_named("tokens").run(plan, lambda target, text: None))


@pytest.mark.parametrize("name", OF_LLAMA_CPP)
def test_our_tokenizer_agrees_with_llama_cpp_on_its_own_vocabularies(
    name: str, shared: Path
) -> None:
    verdicts = fuzzed(str(vocabulary_or_skip(name, shared)))
    assert {v.status for v in verdicts} <= {"agreed", "excused"}, verdicts
    assert verdicts[0].detail["texts"] == CASES


@pytest.mark.parametrize("kind", KINDS)
def test_our_tokenizer_agrees_with_llama_cpp_on_each_kind_of_vocabulary(kind: str) -> None:
    verdicts = fuzzed(f"builtin:{kind}", cases=400)
    assert {v.status for v in verdicts} <= {"agreed", "excused"}, verdicts
    assert verdicts[0].detail["texts"] == 400


@pytest.mark.parametrize("name", WRONG)
def test_tokens_suite_finds_a_wrong_tokenizer(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_llama(BUILTIN_VOCABULARIES[WRONG[name].shows_on], path)
    verdicts = verdicts_of(plan_of(path, name), "tokens")
    wrong = {v.detail["way"] for v in verdicts if v.status == "diverged"}
    assert WRONG[name].way in wrong


def test_text_that_kills_llama_cpp_is_excused_if_we_refuse_it() -> None:
    agreed, excused = fuzzed("builtin:gpt2", given=(b"\xf5\x80\x80\x80",))
    assert (agreed.detail["refused_by_both"], excused.status) == (4, "excused")
    assert "SIGABRT" in excused.summary
    assert "code points up to U+10FFFF" in excused.summary


@pytest.mark.parametrize("kind", KINDS)
def test_check_agrees_on_a_model_with_any_kind_of_vocabulary(
    kind: str, tmp_path: Path, plan_for: Any, checked: Checked
) -> None:
    path = tmp_path / "model.gguf"
    write_llama(BUILTIN_VOCABULARIES[kind], path)
    plan: Plan = plan_for(path, suites=("metadata", "tokens"))
    verdicts = checked(plan)
    assert {v.status for v in verdicts} <= {"agreed", "excused"}, verdicts
    assert len(verdicts) > 8
