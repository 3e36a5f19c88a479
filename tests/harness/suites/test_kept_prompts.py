"""Engines that keep a prompt's keys and values for the next: rightly, and further than is right."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.adapters.fast import FastEngine
from lockstep.harness.check.check import open_plan
from lockstep.harness.records import EngineInfo, Verdict
from lockstep.harness.suites.parts.prompts_in_turn import in_turn
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import written
from tests.quiet_engines import Quiet, Row


class Keeps(Quiet, name="lists: keeps a prompt"):
    """As far as both are the same. `first` is how much of it is looked at."""

    first: int | None = None
    kept: Sequence[int] = ()

    def listed(self, prefix: Sequence[int], k: int) -> Row:
        ids = [*prefix]
        alike = next(
            (i for i, (a, b) in enumerate(zip(self.kept, ids, strict=False)) if a != b), len(ids)
        )
        if self.first is not None and alike >= self.first:
            n = min(len(self.kept), len(ids) - 1)
            ids = [*self.kept[:n], *ids[n:]]
        self.kept = ids
        return super().listed(ids, k)


class ByItsFirstFour(Keeps, name="lists: keeps a prompt by its first four tokens"):
    first = 4


class TextByItsFirstFour(Quiet, name="text: keeps a prompt by its first four tokens"):
    levels = ("generate",)
    first: int | None = 4
    kept: Sequence[int] = ()

    def generate(self, prompt: bytes, n: int) -> bytes:
        ids = self.tokenize([prompt])[0]
        read = ids
        if self.first is not None and [*self.kept[: self.first]] == ids[: self.first]:
            m = min(len(self.kept), len(ids) - 1)
            read = [*self.kept[:m], *ids[m:]]
        self.kept = read
        pieces = [self.tokenizer.piece(t, special=False) for t in self.greedy(read, n)]
        return self.write(pieces)


class ByItsFirstFourOfTexts(ByItsFirstFour, name="lists of texts: keeps one by its first four"):
    text_only = True


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    return written(folder, seed=0, n_layer=1, n_embd=32, n_ff=64)


def checked(model: Path, engine: type[Any]) -> list[Verdict]:
    plan = plan_for(model, engine=engine.name, suites=("logprobs",), n_tokens=24)
    return verdicts_of(plan)


def test_who_keeps_a_prompt_as_far_as_both_are_the_same_agrees(model: Path) -> None:
    (found,) = checked(model, Keeps)
    assert found.status == "agreed", found
    assert "the same behind a prompt that begins alike" in found.summary


@pytest.mark.parametrize("engine", [ByItsFirstFour, ByItsFirstFourOfTexts])
def test_who_keeps_more_of_it_is_found_and_told_where_to_look(
    engine: type[Any], model: Path
) -> None:
    found = checked(model, engine)
    assert [verdict.status for verdict in found] == ["agreed", "diverged"], found
    assert "behind one that begins otherwise it is right" in found[1].summary
    assert found[1].detail["at_fault"] == "subject"


def test_by_its_text_alone_it_is_found_too(model: Path) -> None:
    plan = plan_for(model, engine=TextByItsFirstFour.name, suites=("text",), n_steps=8)
    found = [verdict for verdict in verdicts_of(plan) if verdict.status == "diverged"]
    assert found
    assert found[0].summary.startswith("behind 'Once there was a dog")
    assert "not asked right behind one that begins alike" in found[0].summary


# --- greedy tokens --------------------------------------------------------------------------------


class KeepsOneTooMany(FastEngine, name="greedy: keeps one token too many"):
    """Of what is kept, as far as both are the same, and one more: with logits that are right, and
    a way of its own to greedy tokens."""

    more = 1
    given: Sequence[int] = ()
    kept: Sequence[int] = ()  # of what there is in the cache

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        rows = enumerate(zip(self.given, prompt, strict=False))
        alike = next((i for i, (a, b) in rows if a != b), 0)
        read = [*prompt]
        if 0 < alike < len(prompt) - self.more:
            read[: alike + self.more] = self.kept[: alike + self.more]
        found = super().greedy(read, n)
        self.given, self.kept = [*prompt, *found], [*read, *found]
        return found


class KeepsWhatIsTheSame(KeepsOneTooMany, name="greedy: keeps what is the same"):
    more = 0


class AloneKeepsOneTooMany(KeepsOneTooMany, name="greedy alone: keeps one token too many"):
    def describe(self) -> EngineInfo:
        return replace(super().describe(), levels=("greedy",))


@pytest.fixture(scope="module")
def telling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two layers: behind one of few, one token decides alone which comes next."""
    return written(tmp_path_factory.mktemp("telling"), seed=0)


def decoded(model: Path, engine: type[Any]) -> list[Verdict]:
    return verdicts_of(plan_for(model, engine=engine.name, suites=("decode",), n_tokens=24))


def test_greedy_tokens_of_who_keeps_what_is_the_same_agree(telling: Path) -> None:
    found = decoded(telling, KeepsWhatIsTheSame)
    assert {verdict.status for verdict in found} == {"agreed"}, found
    assert any("begin as the one before" in verdict.summary for verdict in found)


@pytest.mark.parametrize("engine", [KeepsOneTooMany, AloneKeepsOneTooMany])
def test_one_token_too_many_is_found_by_greedy_tokens(engine: type[Any], telling: Path) -> None:
    found = next(v for v in decoded(telling, engine) if v.status == "diverged")
    assert found.key == "decode/other prompt"
    assert found.detail["at_fault"] == "subject"


def test_behind_a_prompt_that_begins_alike_it_is_said_where_to_look(telling: Path) -> None:
    plan = plan_for(telling, engine=KeepsOneTooMany.name, n_tokens=24)
    opened = open_plan(plan, lambda _: None)
    try:
        (found,) = in_turn(opened.context, opened.context)
    finally:
        opened.close()
    assert found.status == "diverged"
    assert "which begins as the one before" in found.summary
    assert "look at what is kept of a prompt for the next" in found.summary


# --- spaces around a prompt -----------------------------------------------------------------------


class CutsOff(Quiet, name="text: cuts off the spaces around a prompt"):
    levels = ("generate",)

    def generate(self, prompt: bytes, n: int) -> bytes:
        return super().generate(prompt.strip(), n)


def test_who_cuts_off_the_spaces_around_a_prompt_is_told_so(telling: Path) -> None:
    plan = plan_for(telling, engine=CutsOff.name, suites=("text",), n_steps=8)
    (found,) = [verdict for verdict in verdicts_of(plan) if verdict.status == "diverged"]
    assert found.summary.startswith("behind '\\n The dog said: '")
    assert "it is the same without the spaces around it: are they cut off?" in found.summary
