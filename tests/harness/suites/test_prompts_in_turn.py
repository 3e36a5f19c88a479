"""Prompts in turn, of engines that choose tokens: who cuts them, or keeps too much of one."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import NoRoom, Unsupported
from lockstep.harness.check.check import open_plan
from lockstep.harness.context import further_runs
from lockstep.harness.records import Verdict
from lockstep.harness.runs.known_failures import place_of
from lockstep.harness.suites.parts.prompts_in_turn import TellingPrompt, in_turn, tells_of_one_more
from tests.black_boxes import with_made_models
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import builtin
from tests.quiet_engines import Quiet


class Keeps(Quiet, name="in turn: keeps a prompt"):
    """As far as both are the same; `first`: that many tokens that are the same are enough."""

    levels = ("greedy",)
    first: int | None = None
    kept: Sequence[int] = ()

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        read = [*prompt]
        if self.first is not None and [*self.kept[: self.first]] == read[: self.first]:
            m = min(len(self.kept), len(read) - 1)
            read = [*self.kept[:m], *read[m:]]
        self.kept = read
        return super().greedy(read, n)


class ByItsFirstFour(Keeps, name="in turn: keeps a prompt by its first four tokens"):
    first = 4


class OneTooMany(Keeps, name="in turn: keeps one token more than is the same"):
    """And so what it made of the prompt before, which was not all of that one's either."""

    last: Sequence[int] = ()

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        pairs = zip(self.last, prompt, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(prompt))
        m = min(same + 1, len(prompt) - 1) if same else 0
        self.last, self.kept = prompt, [*self.kept[:m], *prompt[m:]]
        return Quiet.greedy(self, self.kept, n)


class ByItsLastEight(Keeps, name="in turn: finds a prompt by its last eight tokens"):
    """Blocks of what is kept have the hash of their own tokens, without those before."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.found: dict[tuple[int, ...], list[int]] = {}

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        read = self.found.setdefault(tuple(prompt[-8:]), [*prompt])
        return super().greedy(read, n)


class ByItsEnds(Keeps, name="in turn: finds a prompt by its length, its beginning and its end"):
    """Of a chat both are the template's, whatever is asked."""

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        read, kept = [*prompt], [*self.kept]
        if len(read) == len(kept) and (read[:8], read[-4:]) == (kept[:8], kept[-4:]):
            read = kept
        self.kept = read
        return Quiet.greedy(self, read, n)


class SameWithoutItsLast(Quiet, name="in turn: the same prompt again is read without its last"):
    """All of it is kept, and one token taken off to have something to compute: which is not."""

    levels = ("greedy",)
    last: Sequence[int] = ()

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        again, self.last = [*prompt] == [*self.last] and len(prompt) > 1, prompt
        return super().greedy(prompt[:-1] if again else prompt, n)


class CutTo64(Quiet, name="in turn: keeps the last 64 tokens"):
    levels = ("greedy", "logits")
    most = 64

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        return super().greedy(prompt[-self.most :], n)


class CutTo128(CutTo64, name="in turn: keeps the last 128 tokens"):
    most = 128


class TakesFew(Quiet, name="in turn: takes 50 tokens"):
    levels = ("greedy",)
    why: type[Exception] = Unsupported

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        if len(prompt) > 50:
            raise self.why("no room for more than 50 tokens")
        return super().greedy(prompt, n)


class RefusesMany(TakesFew, name="in turn: refuses more than 50 tokens"):
    why = NoRoom


def decoded(engine: type[Quiet], model: Path) -> list[Verdict]:
    return verdicts_of(plan_for(model, engine=engine.name, suites=("decode",), n_tokens=32))


@pytest.mark.parametrize("model", ["f32", "q8_0"])
@pytest.mark.parametrize(
    ("engine", "look"),
    [
        (ByItsFirstFour, "look at what is kept of a prompt for the next"),
        (OneTooMany, "which begins as the one before"),
        (ByItsLastEight, "in turn"),
        (ByItsEnds, "which begins and ends as the one before"),
        (SameWithoutItsLast, "which is the one before"),
        (
            CutTo64,
            "look at whether such a prompt is cut, or taken for one as long, and how much is",
        ),
        (CutTo128, "look at whether such a prompt is cut"),
    ],
)
def test_who_cuts_a_long_prompt_or_keeps_one_by_its_beginning_is_found(
    engine: type[Quiet], look: str, model: str, tmp_path: Path
) -> None:
    wrong = [v for v in decoded(engine, builtin(model, tmp_path)) if v.status == "diverged"]
    assert wrong
    assert engine is not ByItsFirstFour or look in wrong[0].summary
    assert "in turn" not in wrong[0].summary or look in wrong[0].summary


class Races(Quiet, name="in turn: is wrong behind every fourth long prompt"):
    """As threads that share a buffer are once in a while, whatever was asked before."""

    levels = ("greedy",)
    n_asked = 0

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        self.n_asked += len(prompt) > 30
        right = super().greedy(prompt, n)
        return right if len(prompt) <= 30 or self.n_asked % 4 else [(right[0] + 1) % 300]


@pytest.mark.parametrize(("engine", "said"), [(Races, True), (ByItsFirstFour, False)])
def test_of_who_is_right_when_asked_once_more_threads_are_named_as_well(
    engine: type[Quiet], said: bool, tmp_path: Path
) -> None:
    """Nothing is kept by it: who looked there alone would not find it."""
    plan = plan_for(builtin("f32", tmp_path), engine=engine.name, suites=("decode",))
    opened = open_plan(plan, lambda _: None)
    try:
        opened.context.begin_noise()
        (found,) = in_turn(opened.context, opened.context)
    finally:
        opened.close()
    assert found.status == "diverged"
    assert "look at what is kept of a prompt for the next" in found.summary
    assert ("asked once more, it is right as well" in found.summary) == said


def test_who_finds_a_prompt_by_its_end_is_found_on_the_first_layer_of_a_large_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(further_runs, "SMALL", 0)
    path = builtin("f32", tmp_path)
    plan = plan_for(path, engine=ByItsLastEight.name, oracle="llama.cpp", suites=("decode",))
    *_, wrong = with_made_models(replace(plan, n_tokens=32))
    assert wrong.status == "diverged"
    assert "which ends as the one before" in wrong.summary


def test_a_prompt_that_goes_on_where_the_one_before_ends_tells_of_no_token_too_many(
    tmp_path: Path,
) -> None:
    opened = open_plan(plan_for(builtin("f32", tmp_path)), lambda _: None)
    try:
        short, long = (
            TellingPrompt(ids=ids, logits=np.zeros(256, np.float32)) for ids in ([5, 6], [5, 6, 7])
        )
        assert not tells_of_one_more(opened.context, long, short)
    finally:
        opened.close()


def test_who_keeps_a_prompt_as_far_as_both_are_the_same_is_right(tmp_path: Path) -> None:
    *_, last = decoded(Keeps, builtin("f32", tmp_path))
    assert last.status == "agreed"
    assert "tokens, of which 1 is the one before" in last.summary
    assert (
        "2 begin as the one before, 1 ends as the one before, 1 begins and ends as" in last.summary
    )


@pytest.mark.parametrize("engine", [TakesFew, RefusesMany])
def test_who_takes_no_more_than_fifty_tokens_is_held_to_those(
    engine: type[Quiet], tmp_path: Path
) -> None:
    *_, last = decoded(engine, builtin("f32", tmp_path))
    assert last.status == "agreed"
    assert "behind 4 prompts in turn is the same, of 37 to 37 tokens" in last.summary


class DiesOfMany(TakesFew, name="in turn: dies of more than 200 tokens"):
    why = RuntimeError

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        if len(prompt) > 200:
            raise self.why("a buffer of 200 tokens")
        return Quiet.greedy(self, prompt, n)


def test_who_dies_of_a_prompt_that_fills_its_context_is_said_to(tmp_path: Path) -> None:
    *_, last = decoded(DiesOfMany, builtin("f32", tmp_path))
    assert last.status == "crashed"
    assert "a buffer of 200 tokens" in last.summary


class DiesOfOne(CutTo64, name="in turn: keeps the last 64 tokens, dies of one behind others"):
    read: Sequence[int] = ()

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        if len(self.read) in range(65, 98) and len(prompt) == 1:
            raise RuntimeError("a prompt of one token")
        self.read = prompt
        return super().greedy(prompt, n)


def test_what_differs_is_said_though_it_dies_of_the_next_question(tmp_path: Path) -> None:
    *_, wrong, last = decoded(DiesOfOne, builtin("f32", tmp_path))
    assert (wrong.status, wrong.key) == ("diverged", "decode/other prompt")
    assert "it is not answered" in wrong.summary
    assert last.status == "crashed"


def test_a_list_of_what_is_known_of_one_prompt_does_not_excuse_another(tmp_path: Path) -> None:
    model = builtin("f32", tmp_path)
    found = [v for e in (ByItsLastEight, SameWithoutItsLast) for v in decoded(e, model)]
    wrong = [verdict for verdict in found if verdict.key == "decode/other prompt"]
    assert len({place_of(verdict.detail) for verdict in wrong}) == len(wrong) == 2
