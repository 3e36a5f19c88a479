"""Refusals by an engine, and models that lack a part. The tests check the blamed engine and the
exit code."""

from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.engine.errors import InvalidModel, NotInModel
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.check.check import preflight
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import Evaluation, Request, Status
from lockstep.harness.synth.llama import LlamaRecipe
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import builtin, with_metadata, written


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return builtin("f32", tmp_path)


OURS = (
    "bert, deepseek2, gemma2, gemma3, gpt-oss, gpt2, lfm2, llama, mamba, phi3, qwen2, qwen3, "
    "qwen3moe"
)


def test_model_without_our_graph_is_not_refused(tmp_path: Path) -> None:
    path = with_metadata(tmp_path / "other.gguf", LlamaRecipe(), general__architecture=("STR", "x"))
    facts = preflight(plan_for(path))
    assert facts.not_ours == f"our engine has no graph for 'x' (it has: {OURS})"
    assert facts.no_run == ""
    plan = plan_for(path, engine="fast", suites=("metadata", "tokens", "dequant", "trace"))
    found = verdicts_of(plan)
    left_out = [(v.suite, v.status) for v in found if v.status != "agreed"]
    assert left_out == [("trace", "not-compared")]  # the user named this suite
    assert exit_code(found) == 3
    everything = [v for v in verdicts_of(replace(plan, suites=())) if v.suite == "trace"]
    # llama.cpp cannot compute its graph either
    assert [v.status for v in everything] == ["not-compared"]


class Refuses(Reference, name="test:refuses"):
    def evaluate(self, request: Request) -> Evaluation:
        raise InvalidModel("no heads of this size")


@pytest.mark.parametrize("role", ["oracle", "engine"])
def test_engine_that_refuses_a_model_that_ours_runs_is_at_fault(role: str, model: Path) -> None:
    (found,) = verdicts_of(plan_for(model, suites=("logits",), **{role: Refuses.name}))
    at_fault = "subject" if role == "engine" else role
    assert (found.status, found.detail["at_fault"]) == ("diverged", at_fault)


def test_refusal_that_our_own_engine_cannot_judge_accuses_no_engine(
    model: Path, tmp_path: Path
) -> None:
    other = written(tmp_path, "other.gguf", seed=2)
    plan = plan_for(model, subject_model=other, suites=("logits",), engine=Refuses.name)
    (found,) = verdicts_of(plan)
    assert (found.status, found.detail["at_fault"]) == ("diverged", "unknown")
    assert "it is unknown which engine is right" in found.summary


class WithoutLogits(Reference, name="test:without-logits"):
    """An engine without logits, such as llama.cpp with a BERT model."""

    def evaluate(self, request: Request) -> Evaluation:
        raise NotInModel("the model has no logits")


class Breaks(Reference, name="test:breaks"):
    def evaluate(self, request: Request) -> Evaluation:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("engine", "status", "code"),
    [
        (WithoutLogits.name, "not-applicable", 0),
        ("fast", "not-compared", 3),
        (Refuses.name, "not-compared", 3),
        (Breaks.name, "crashed", 3),
    ],
)
def test_model_without_logits_does_not_excuse_an_engine_that_cannot_run_it(
    engine: str, status: Status, code: int, tmp_path: Path
) -> None:
    path = with_metadata(tmp_path / "other.gguf", LlamaRecipe(), general__architecture=("STR", "x"))
    plan = plan_for(path, oracle=WithoutLogits.name, engine=engine, suites=("dequant", "logits"))
    found = verdicts_of(plan)
    assert [v.status for v in found if v.suite == "logits"] == [status]
    assert exit_code(found) == code
