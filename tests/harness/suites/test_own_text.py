"""Behind a tie two texts go on, and an engine's own is held to its own logits."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from lockstep.engine.batch import steps_of
from lockstep.harness.records import Verdict
from lockstep.harness.suites.parts.own_text import held_to_its_own
from tests.contexts import context_of
from tests.models import builtin, written


def held(model: Path, changed: Sequence[int]) -> tuple[Verdict, list[int]]:
    """A text of eight tokens, of which these are others than the engine chose; and the verdict."""
    with context_of(model, oracle="llama.cpp") as context:
        context.begin_noise()
        prompt = context.tokens[:4]
        text = list(context.ask(context.subject, "greedy", prompt, 8))
        for step in changed:
            text[step] = (text[step] + 1) % 312
        tie = context.verdict("decode", "excused", "greedy token 0 is a tie")
        return held_to_its_own(context, tie, steps_of(prompt, text), text), text


@pytest.mark.parametrize("changed", [None, 3])
def test_a_token_that_its_own_logits_do_not_prefer_is_a_divergence(
    changed: int | None, tmp_path: Path
) -> None:
    """Else all that is written behind a tie may be anything."""
    found, text = held(builtin("q8_0", tmp_path), [] if changed is None else [changed])
    if changed is None:
        assert found.status == "excused"
        words = "greedy token 0 is a tie; all 8 tokens are its own logits' choice, within the"
        assert found.summary.startswith(words)
    else:
        assert (found.status, found.detail["step"]) == ("diverged", changed)
        assert f"greedy token {changed} is {text[changed]}, and its own logits" in found.summary


@pytest.mark.parametrize(
    ("changed", "expected"), [([3], "excused"), ([1, 2, 3, 5, 6], "diverged")], ids=["one", "most"]
)
def test_of_a_model_with_experts_one_token_may_be_another_and_most_may_not(
    changed: list[int], expected: str, tmp_path: Path
) -> None:
    made = written(tmp_path, quant="Q8_0", n_expert=4, n_expert_used=2)
    found, _ = held(made, changed)
    assert found.status == expected
    assert ("other experts may be chosen" in found.summary) == (expected == "excused")
