"""Close choices between two tokens, which show small errors through text alone.

After a tie, two honest texts may differ. Therefore an engine's text is compared with the engine's
own logits.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.batch import Batch, steps_of
from lockstep.engine.registry import import_members
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.judging.tolerances import between_two, between_two_in_rows
from lockstep.harness.records import Request, Verdict
from lockstep.harness.suites.parts import next_tokens
from lockstep.harness.suites.parts.next_tokens import (
    ASKED,
    ROOM,
    allowed_in,
    beginnings_of,
    closest,
    margin_of,
    seeded_runs,
    texts_of,
)
from lockstep.harness.suites.parts.oracles_logits import nearly_chosen
from lockstep.harness.suites.parts.own_text import held_to_its_own
from lockstep.harness.suites.parts.prompts import LONG
from tests.contexts import check_engine, context_of, statuses
from tests.models import builtin, written
from tests.quiet_engines import Quiet, made, wrong

import_members("lockstep.harness.mutants")
LEVELS = {"decode": "greedy", "text": "generate"}


def quiet(level: str, mistake: str = "") -> str:
    """Return an engine that offers only this level."""
    base = "quiet"
    if mistake:
        base = f"close: {mistake}"
        if base not in Adapter.family:
            wrong(base, Adapter.family[f"mutant:{mistake}"])
    name = f"{base} {level} alone"
    if name not in Adapter.family:
        made(name, base=Adapter.family[base], levels=(level,), text_only=level == "generate")
    return name


@pytest.mark.parametrize("suite", LEVELS)
@pytest.mark.parametrize("name", ["f32", "q8_0"])
def test_honest_engine_makes_the_same_choices(suite: str, name: str, tmp_path: Path) -> None:
    model = builtin(name, tmp_path)
    found = check_engine(model, quiet(LEVELS[suite]), suite, n_steps=8)
    assert statuses(found) <= {"agreed", "not-applicable"}
    assert any("margins of" in verdict.summary for verdict in found)


def test_margins_are_small_and_beyond_the_noise(tmp_path: Path) -> None:
    with context_of(builtin("f32", tmp_path)) as context:
        close = closest(context, seeded_runs(context))
        assert len(close) == ASKED
        assert [one.margin for one in close] == sorted(one.margin for one in close)
        for one in close:
            row = one.logits[0]
            assert ROOM * allowed_in(context, row) < one.margin < 2e-3 * np.abs(row).max()
        ids, parts = beginnings_of(context, next(texts_of(context, LONG)))
        again = context.ask(context.oracle, "tokenize", [*parts.values()])
        assert again == [ids[:n] for n in parts]
        assert len(parts) > 20


@pytest.mark.parametrize("row", [[1.0], [1.0, np.nan], [np.inf, 0.0], [2.0, 2.0]])
def test_row_with_a_tie_or_nan_has_no_margin(row: list[float]) -> None:
    assert margin_of(np.array(row, np.float32)) == 0


@pytest.mark.parametrize(("behind", "is_near"), [(0.5, False), (0.03, True)])
def test_row_of_large_logits_does_not_widen_other_limits(behind: float, is_near: bool) -> None:
    """The limit of the row with the largest logit is 4. In the second row, this limit would allow
    any token."""
    run = np.array([[100, 0], [1, 1 - behind]], np.float32)
    allowed = between_two_in_rows(0.01, run)
    assert between_two(0.01, run) > behind
    assert nearly_chosen([0, 1], run, allowed) is is_near
    assert nearly_chosen([0, 0], run, allowed)


class Longer(Quiet, name="close: a longer text"):
    """An engine that writes two tokens if one is requested."""

    levels = ("generate",)
    text_only = True

    def generate(self, prompt: bytes, n: int) -> bytes:
        return super().generate(prompt, n + (n == 1))


def test_text_of_several_tokens_does_not_count_as_the_same_choice(tmp_path: Path) -> None:
    *_, last = check_engine(builtin("f32", tmp_path), Longer, "text", n_steps=8)
    assert last.status == "not-applicable"
    assert "prompts the engine's text is longer or shorter than one token" in last.summary


class Wavering(Quiet, name="close: the second-likeliest where it is near"):
    """An engine that chooses the second most likely token where the most likely token is hardly
    better. Another conversion of activations could cause this choice."""

    levels = ("greedy",)

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        if n > 1:
            return super().greedy(prompt, n)
        row = self.evaluate(Request(batches=(Batch.of(prompt),))).logits[0][-1]
        first, second = np.argsort(-row, kind="stable")[:2]
        near = row[first] - row[second] < 1e-3 * np.abs(row).max()
        return [int(second if near else first)]


@pytest.mark.parametrize(("honest", "status"), [(True, "excused"), (False, "diverged")])
def test_choice_of_an_honest_run_is_not_a_fault(
    honest: bool, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_tokens, "designs_that_say", lambda *_: [3] if honest else [])
    verdicts = check_engine(builtin("f32", tmp_path), Wavering, "decode", n_steps=8)
    assert statuses(verdicts) <= {"agreed", "not-applicable", status}
    others = ("control token", "prompts in turn")
    *_, last = (v for v in verdicts if not any(words in v.summary for words in others))
    assert last.status == status
    if honest:
        assert last.detail["others"] == ASKED


@pytest.mark.parametrize("coarse", [False, True])
def test_wrong_choice_despite_right_logits_is_found(coarse: bool, tmp_path: Path) -> None:
    def greedy(self: Quiet, prompt: Sequence[int], n: int) -> list[int]:
        ids = list(prompt)
        for _ in range(n):
            row = self.evaluate(Request(batches=(Batch.for_next(ids),))).logits[0][-1]
            ids.append(int((np.round(row * 100) if coarse else row).argmax()))
        return ids[len(prompt) :]

    name = f"close: of logits, {'coarse' if coarse else 'all of them'}"
    made(name, levels=("logits", "greedy"), greedy=greedy)
    *fine, last = check_engine(builtin("f32", tmp_path), name, "decode", n_steps=8)
    assert statuses(fine) == {"agreed"}
    assert last.status == ("diverged" if coarse else "agreed")


def held(model: Path, changed: Sequence[int]) -> Verdict:
    """Return the verdict on a text of eight tokens. The tokens at the steps in `changed` are
    wrong."""
    with context_of(model, oracle="llama.cpp") as context:
        context.begin_noise()
        prompt = context.tokens[:4]
        text = list(context.ask(context.subject, "greedy", prompt, 8))
        for step in changed:
            text[step] = (text[step] + 1) % 312
        tie = context.verdict("decode", "excused", "greedy token 0 is a tie")
        return held_to_its_own(context, tie, steps_of(prompt, text), text)


@pytest.mark.parametrize("changed", [None, 3])
def test_token_against_the_engines_own_logits_is_a_divergence(
    changed: int | None, tmp_path: Path
) -> None:
    """Any text after a tie would pass if it were not compared with the engine's own logits."""
    found = held(builtin("q8_0", tmp_path), [] if changed is None else [changed])
    if changed is None:
        assert found.status == "excused"
        assert "all 8 tokens are the choice of the engine's own logits" in found.summary
    else:
        assert (found.status, found.detail["step"]) == ("diverged", changed)


@pytest.mark.parametrize(
    ("changed", "expected"), [([3], "excused"), ([1, 2, 3, 5, 6], "diverged")], ids=["one", "most"]
)
def test_expert_model_may_have_one_other_token_but_not_most(
    changed: list[int], expected: str, tmp_path: Path
) -> None:
    made = written(tmp_path, quant="Q8_0", n_expert=4, n_expert_used=2)
    found = held(made, changed)
    assert found.status == expected
