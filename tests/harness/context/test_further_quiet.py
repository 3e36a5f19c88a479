"""Engines without logits, tested with longer prompts than usual, and with control tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.exit_codes import exit_code
from tests.contexts import check_engine, statuses
from tests.harness.context.test_further_runs import RowsBehind64, model
from tests.quiet_engines import Quiet, made, never_choosing

__all__ = ["model"]  # the fixture is re-exported
QUIET = {"logprobs": "logprobs", "greedy": "decode", "generate": "text"}


def quiet(level: str) -> str:
    """Return an engine that offers only this level, and is wrong after 64 rows."""
    changes = {"levels": (level,), "ops": RowsBehind64, "make_ops": Reference.make_ops}
    return made(f"further: {level}", Quiet, **changes)


@pytest.mark.parametrize(("level", "suite"), QUIET.items())
def test_engine_without_logits_gets_longer_prompts(level: str, suite: str, model: Path) -> None:
    *_, wrong = check_engine(model, quiet(level), suite, n_tokens=32)
    assert wrong.status == "diverged", wrong.summary
    assert wrong.detail["at_fault"] == "subject"


def test_token_engine_that_never_chooses_a_control_token_is_found(
    model: Path,
) -> None:
    never = never_choosing(0, 1, 2)  # ids of UNK, BOS and EOS
    name = made("further: no control tokens", Quiet, levels=("greedy",), greedy=never)
    *fine, wrong = check_engine(model, name, "decode", n_tokens=32)
    assert "diverged" not in statuses(fine)
    assert (wrong.status, wrong.key) == ("diverged", "decode/control token")
    right = made("further: tokens alone", Quiet, levels=("greedy",))
    *_, control, last = check_engine(model, right, "decode", n_tokens=32)
    assert (control.status, last.status) == ("agreed", "agreed")
    assert "the same control tokens, first and last token" in control.summary


def test_wrong_oracle_does_not_accuse_a_right_token_engine(model: Path) -> None:
    right = made("further: tokens beside a wrong oracle", Quiet, levels=("greedy",))
    assert "diverged" not in statuses(
        check_engine(model, right, "decode", oracle="mutant:rope-half-split", n_tokens=32)
    )


def test_oracle_wrong_at_a_control_token_is_reported(
    model: Path,
) -> None:
    right = made("further: tokens beside wrong rows", Quiet, levels=("greedy",))
    wrong_rows = "further: rows behind 64"
    found = [
        v
        for v in check_engine(model, right, "decode", oracle=wrong_rows, n_tokens=32)
        if v.status not in ("agreed", "not-applicable")
    ]
    assert statuses(found) == {"not-compared"}
    assert any("oracle's logits, and these are wrong" in v.summary for v in found)


class ShortGreedy(Reference, name="further: greedy behind 64 tokens"):
    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        if len(prompt) > 64:
            raise Unsupported("64 cells")
        return super().greedy(prompt, n)


def test_engine_with_logits_is_also_tested_by_its_choices(
    model: Path,
) -> None:
    found = check_engine(model, ShortGreedy, "decode", n_tokens=32)
    assert exit_code(found) == 3
    assert any("greedy tokens are the same" in v.summary for v in found if v.status == "agreed")
    assert any("64 cells" in v.summary for v in found if v.status == "not-compared")


def short_of(question: str, error: type[EngineError] = Unsupported) -> Any:
    """Return an honest engine with room for 64 tokens, which reports this limit."""

    def ask(self: Any, given: Any, n: int) -> Any:
        longest = max(map(len, given)) if question == "logprobs" else len(given)
        if longest > (200 if question == "generate" else 64):
            raise error("64 cells")
        return getattr(Quiet, question)(self, given, n)

    return ask


@pytest.mark.parametrize(("level", "suite"), QUIET.items())
def test_engine_that_fails_after_long_prompts_does_not_conform(
    level: str, suite: str, model: Path
) -> None:
    name = made(f"fails: {level}", Quiet, levels=(level,), **{level: short_of(level, EngineError)})
    found = check_engine(model, name, suite, n_tokens=32)
    assert "64 cells" in next(v.summary for v in found if v.status == "not-compared")
    assert exit_code(found) == 3


@pytest.mark.parametrize(("level", "suite"), QUIET.items())
def test_engine_with_a_short_context_is_compared_up_to_its_end(
    level: str, suite: str, model: Path
) -> None:
    name = made(f"short: {level}", Quiet, levels=(level,), **{level: short_of(level)})
    found = check_engine(model, name, suite, n_tokens=32)
    assert statuses(found) <= {"agreed", "excused", "not-applicable"}
    assert "64 cells" in next(v.summary for v in found if v.status == "not-applicable")
    assert exit_code(found) == 0
