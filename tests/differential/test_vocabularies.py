"""A short campaign on vocabularies of each kind: some of llama.cpp's, and the built-in ones."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.harness.check.check import Plan, open_plan, run_suites
from lockstep.harness.context.runner import Runner
from lockstep.harness.fuzzers.base import FuzzPlan, fuzzer_named
from lockstep.harness.fuzzers.tokens.texts import material_of, text
from lockstep.harness.mutants.tokenizers import WRONG
from lockstep.harness.records import EXACT, Answered, Verdict
from lockstep.harness.selftest.tokens import in_words, try_wrong_tokenizer
from lockstep.harness.synth.builtin import BUILTIN_VOCABULARIES
from lockstep.harness.synth.llama import write_llama
from tests.differential.conftest import Checked
from tests.vocabularies import vocabulary_or_skip

KINDS = [kind for kind in BUILTIN_VOCABULARIES if kind != "none"]
# those of other sizes and pre-tokenizers are in test_tokens_bpe.py; tests/golden asks all 19
OF_LLAMA_CPP = ("baichuan", "llama-spm", "phi-3", "gpt-2", "bert-bge", "gemma-4")
SEED = 4
CASES = 120


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the processes of a test run have in common."""
    return tmp_path_factory.getbasetemp().parent


def fuzzed(target: str, **changes: Any) -> list[Verdict]:
    plan = FuzzPlan(**{"targets": (target,), "cases": CASES, "seed": SEED, **changes})
    return list(fuzzer_named("tokens").run(plan, lambda target, text: None))


@pytest.mark.parametrize("name", OF_LLAMA_CPP)
def test_our_tokenizer_is_llama_cpps_on_its_own_vocabularies(name: str, shared: Path) -> None:
    verdicts = fuzzed(str(vocabulary_or_skip(name, shared)))
    assert {v.status for v in verdicts} <= {"agreed", "excused"}, verdicts
    assert verdicts[0].detail["texts"] == CASES


@pytest.mark.parametrize("kind", KINDS)
def test_our_tokenizer_is_llama_cpps_on_every_kind_of_vocabulary(kind: str) -> None:
    verdicts = fuzzed(f"builtin:{kind}", cases=400)
    assert {v.status for v in verdicts} <= {"agreed", "excused"}, verdicts
    assert verdicts[0].detail["texts"] == 400


@pytest.mark.parametrize("name", WRONG)
def test_against_llama_cpp_a_wrong_tokenizer_is_caught_with_a_small_text(name: str) -> None:
    result = try_wrong_tokenizer(WRONG[name])
    assert result.caught
    assert result.located, in_words(result)


@pytest.mark.parametrize("name", WRONG)
def test_the_tokens_suite_of_check_sees_a_wrong_tokenizer(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_llama(BUILTIN_VOCABULARIES[WRONG[name].shows_on], path)
    plan = Plan(case=name, model=path, subject_model=path, engine=name, settings=EXACT)
    opened = open_plan(plan, lambda text: None)
    try:
        verdicts = list(run_suites(opened.context, ("tokens",)))
    finally:
        opened.close()
    wrong = {v.detail["way"] for v in verdicts if v.status == "diverged"}
    assert WRONG[name].way in wrong


def test_a_text_that_llama_cpp_does_not_survive_is_excused_as_we_refuse_it() -> None:
    agreed, excused = fuzzed("builtin:gpt2", given=(b"\xf5\x80\x80\x80",))
    assert (agreed.detail["refused_by_both"], excused.status) == (4, "excused")
    assert "SIGABRT" in excused.summary
    assert "code points up to U+10FFFF" in excused.summary


@pytest.mark.parametrize("kind", KINDS)
def test_what_hypothesis_finds_with_the_same_strategies(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_llama(BUILTIN_VOCABULARIES[kind], path)
    with GgufFile.open(path) as file:
        tokenizer = tokenizer_of(file.metadata)
        material = material_of(tokenizer, file.metadata)

    @st.composite
    def texts(draw: st.DrawFn) -> bytes:
        class Drawn:
            def below(self, n: int) -> int:
                return draw(st.integers(0, n - 1))

        return text(Drawn(), material)

    with Runner().open("llama.cpp", path, EXACT) as session:

        @settings(
            max_examples=60,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow],
        )
        @given(texts(), st.booleans(), st.booleans())
        def same(made: bytes, add: bool, parse: bool) -> None:
            try:
                ours = tokenizer.encode(made, add_special=add, parse_special=parse)
            except EngineError:
                return  # llama.cpp would not survive it
            answer = session.ask("tokenize", [made], add_special=add, parse_special=parse)
            assert isinstance(answer, Answered)
            assert list(answer.value[0]) == ours

        same()


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
