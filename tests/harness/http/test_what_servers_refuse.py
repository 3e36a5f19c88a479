"""Refusals by servers are not wrong answers, and their token counts are compared."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.check.check import BadInput
from lockstep.harness.records import Verdict
from tests.fake_server import NATIVE, OPENAI, serving
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import written

TEXT_ALONE = {"pages": OPENAI, "takes_ids": False}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("refused"), seed=0, n_layer=1, n_embd=32, n_ff=64)


def more_than(most: int, body: Any) -> str:
    return f"max_tokens must be at most {most}" if body.get("max_tokens", 0) > most else ""


def needs_heat(body: Any) -> str:
    return "temperature must be positive" if body.get("temperature", 1) <= 0 else ""


def without_bias(body: Any) -> str:
    return "no such parameter: logit_bias" if "logit_bias" in body else ""


def of_two_words(body: Any) -> str:
    return "it begins with a digit" if str(body.get("prompt", "")).startswith("2") else ""


def checked(model: Path, suite: str, **how: Any) -> list[Verdict]:
    with serving(model, **how) as address:
        return verdicts_of(plan_for(model, engine=address, suites=(suite,), n_steps=8))


@pytest.mark.parametrize(("most", "compared"), [(4, 4), (3, 2), (1, 1)])
def test_server_with_a_token_limit_is_compared_within_it(
    most: int, compared: int, model: Path
) -> None:
    found = checked(model, "text", refuses=partial(more_than, most), **TEXT_ALONE)
    assert [v.status for v in found] == ["agreed", "not-compared"], found
    assert f"the text of {compared} greedy tokens is the same" in found[0].summary
    assert f"--steps {compared} asks for no more" in found[1].summary
    assert f"max_tokens must be at most {most}" in found[1].summary


def test_fault_within_the_limit_of_prompts_is_found(model: Path) -> None:
    def worse(path: str, said: Any) -> Any:
        if path.endswith("completions"):
            said["choices"][0]["text"] = "~" + said["choices"][0]["text"]
        return said

    refuses = partial(more_than, 4)
    found = checked(model, "text", refuses=refuses, change=worse, **TEXT_ALONE)
    assert found[0].status == "diverged", found


def test_always_refused_prompt_is_a_divergence(model: Path) -> None:
    found = checked(model, "text", refuses=of_two_words, **TEXT_ALONE)
    assert found[-1].status == "diverged", found
    assert "it begins with a digit" in found[-1].summary


def test_server_that_refuses_greedy_tokens_is_not_compared(model: Path) -> None:
    with pytest.raises(BadInput, match="temperature must be positive"):
        checked(model, "text", refuses=needs_heat, **TEXT_ALONE)


def test_lists_of_a_server_that_refuses_a_bias_are_compared(model: Path) -> None:
    found = checked(model, "logprobs", refuses=without_bias, pages=NATIVE)
    assert "diverged" not in {v.status for v in found}, found
    assert found[0].status == "agreed", found


@pytest.mark.parametrize(
    ("around", "says"),
    [("<s>{}", "a doubled BOS"), ("User: {} Assistant:", "a chat template around the prompt")],
)
@pytest.mark.parametrize("suite", ["text", "logprobs"])
def test_report_names_the_cause_if_a_server_counts_more_tokens(
    around: str, says: str, suite: str, model: Path
) -> None:
    found = checked(model, suite, around=around, **TEXT_ALONE)
    assert found[0].status == "diverged", found
    assert says in found[0].summary
    assert "; the engine counts " in found[0].summary


def test_server_that_counts_tokens_as_we_do_gets_no_remark(model: Path) -> None:
    for suite in ("text", "logprobs"):
        found = checked(model, suite, **TEXT_ALONE)
        assert all("it counts" not in v.summary for v in found)
        assert found[0].status == "agreed", found


def all_texts(body: Any) -> str:
    return "prompts are token ids" if isinstance(body.get("prompt"), str) else ""


def test_server_that_accepts_only_ids_is_asked_for_no_text(model: Path) -> None:
    """An earlier version accused the engine of refusing texts that the oracle accepts."""
    text, lists = (
        checked(model, suite, pages=OPENAI, refuses=all_texts) for suite in ("text", "logprobs")
    )
    assert [v.status for v in text] == ["not-compared"], text  # the user named this suite
    assert "does not offer generate" in text[0].summary
    assert {v.status for v in lists} == {"agreed"}


def test_server_of_ids_that_accepts_some_texts_is_tested_with_them(model: Path) -> None:
    found = checked(model, "text", pages=OPENAI, refuses=of_two_words)
    assert found[-1].status == "diverged", found
