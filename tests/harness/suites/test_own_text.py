"""Behind a tie two texts go on, and an engine's own is held to its own logits."""

from pathlib import Path

import pytest

from lockstep.engine.batch import steps_of
from lockstep.harness.check.check import open_plan
from lockstep.harness.suites.parts.own_text import held_to_its_own
from tests.harness.check.test_check import plan_for
from tests.models import builtin


@pytest.mark.parametrize("changed", [None, 3])
def test_a_token_that_its_own_logits_do_not_prefer_is_a_divergence(
    changed: int | None, tmp_path: Path
) -> None:
    """Else all that is written behind a tie may be anything."""
    opened = open_plan(plan_for(builtin("q8_0", tmp_path), oracle="llama.cpp"), lambda _: None)
    try:
        context = opened.context
        context.begin_noise()
        prompt = context.tokens[:4]
        text = context.ask(context.subject, "greedy", prompt, 8)
        if changed is not None:
            text = [*text[:changed], (text[changed] + 1) % 312, *text[changed + 1 :]]
        tie = context.verdict("decode", "excused", "greedy token 0 is a tie")
        found = held_to_its_own(context, tie, steps_of(prompt, text), text)
    finally:
        opened.close()
    if changed is None:
        assert found.status == "excused"
        words = "greedy token 0 is a tie; by its own logits all 8 of its text are as near the"
        assert found.summary.startswith(words)
    else:
        assert (found.status, found.detail["step"]) == ("diverged", changed)
        assert f"greedy token {changed} is {text[changed]}, and its own logits" in found.summary
