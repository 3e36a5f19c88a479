"""Prompts in turn, on the first layer of a model that says nothing of them itself: of a real
quantised one no token is so much likelier than another that a wrong one proved anything."""

from pathlib import Path

import pytest

from lockstep.harness.blackbox.in_check import questions
from lockstep.harness.blackbox.own_prompts import WHERE, checked
from lockstep.harness.check.check import open_plan, run_suites
from lockstep.harness.records import Verdict
from lockstep.harness.suites.parts import control_tokens
from tests.black_boxes import one_layer_of
from tests.harness.check.test_check import plan_for
from tests.models import builtin


def asked(model: Path, engine: str) -> list[Verdict]:
    plan = plan_for(model, engine=engine, oracle="llama.cpp", n_tokens=32)
    opened = open_plan(plan, lambda _: None)
    try:
        return list(checked(plan, opened.context))
    finally:
        opened.close()


@pytest.mark.parametrize(
    ("mistake", "look"),
    [
        ("mutant:prompt-keeps-last-32", "look at whether such a prompt is cut"),
        ("mutant:prompt-of-the-same-length", "or taken for one as long"),
        ("mutant:prompt-beginning-of-last", "look at what is kept of a prompt for the next"),
    ],
)
def test_who_reads_no_prompt_for_itself_is_found_on_the_first_layer(
    mistake: str, look: str, tmp_path: Path
) -> None:
    (found,) = asked(builtin("q4_0", tmp_path), mistake)
    assert (found.status, found.key) == ("diverged", "decode/other prompt")
    assert found.detail["at_fault"] == "subject"
    assert look in found.summary


@pytest.mark.parametrize("engine", ["reference", "honest:float64", "honest:sums-one-by-one"])
@pytest.mark.parametrize("model", ["q4_0", "moe-q8_0"])
def test_an_honest_engine_is_right_behind_all_of_them(
    engine: str, model: str, tmp_path: Path
) -> None:
    (found,) = asked(builtin(model, tmp_path), engine)
    assert found.status == "agreed"
    assert found.summary.startswith(f"{WHERE} the token behind ")


@pytest.mark.parametrize("arch", ["gemma2", "gpt2", "rwkv6", "mamba", "deepseek2"])
def test_engines_of_other_architectures_are_asked_as_well_or_nothing_is_said(
    arch: str, tmp_path: Path
) -> None:
    found = asked(one_layer_of(arch, tmp_path), "replay")
    assert [verdict.status for verdict in found] in ([], ["agreed"])


def test_it_is_asked_where_nothing_is_known_of_other_prompts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = builtin("q4_0", tmp_path)
    plan = plan_for(model, engine="reference", oracle="llama.cpp", suites=("decode",), n_tokens=32)

    def summaries() -> str:
        opened = open_plan(plan, lambda _: None)
        opened.context.on_made_models = questions(plan)
        try:
            return "; ".join(verdict.summary for verdict in run_suites(opened.context, plan.suites))
        finally:
            opened.close()

    monkeypatch.setattr(control_tokens, "other_prompts", lambda *_: [])
    assert WHERE in summaries()
    monkeypatch.undo()
    known = summaries()
    assert (WHERE in known) != (control_tokens.OTHER_PROMPTS in known)
