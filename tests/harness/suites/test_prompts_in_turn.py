"""Engines that truncate prompts, or reuse too much of an earlier prompt."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import NoRoom, Unsupported
from lockstep.harness.asking import facts
from lockstep.harness.records import Verdict
from lockstep.harness.runs.known_failures import place_of
from lockstep.harness.suites.parts.prompts_in_turn import TellingPrompt, in_turn, tells_of_one_more
from tests.black_boxes import with_made_models
from tests.contexts import check_engine, context_of, diverged
from tests.harness.check.test_check import plan_for
from tests.models import builtin, written
from tests.quiet_engines import Quiet, Row, made


class Reads(Quiet, name="in turn: reads each prompt as it is"):
    """An engine with a prompt cache. `kept` is the cached prompt, and `last` is the last input."""

    levels: tuple[str, ...] = ("greedy",)
    kept: Sequence[int] = ()
    last: Sequence[int] = ()

    def read(self, prompt: list[int]) -> list[int]:
        return prompt

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        self.kept, self.last = self.read([*prompt]), [*prompt]
        return super().greedy(self.kept, n)


def by_its_last_eight(engine: Reads, prompt: list[int]) -> list[int]:
    """Find a cached prompt by its last eight tokens alone, like a cache whose hash of a block
    ignores earlier tokens."""
    found: dict[tuple[int, ...], list[int]] = engine.__dict__.setdefault("found", {})
    return found.setdefault(tuple(prompt[-8:]), prompt)


def by_its_ends(engine: Reads, prompt: list[int]) -> list[int]:
    """Find cached prompts by their beginning, end and length. With a chat template, all prompts
    have the same beginning and the same end."""
    kept = [*engine.kept]
    same = (len(kept), kept[:8], kept[-4:]) == (len(prompt), prompt[:8], prompt[-4:])
    return kept if same else prompt


def same_without_its_last(engine: Reads, prompt: list[int]) -> list[int]:
    """Ignore the last token of a prompt that is the same as the previous input."""
    return prompt[:-1] if prompt == engine.last and len(prompt) > 1 else prompt


READS: dict[str, Callable[[Reads, list[int]], list[int]]] = {
    "in turn": by_its_last_eight,
    "which begins and ends like the one before": by_its_ends,
    "which repeats the one before": same_without_its_last,
    "look at prompts that are cut": lambda _, prompt: prompt[-128:],
}
KEPT, ONE_KEPT = "look at the prompt cache", "which begins like the one before"
ENGINES = {look: made(f"in turn: {look}", Reads, read=read) for look, read in READS.items()} | {
    KEPT: "mutant:prompt-found-by-its-first-four",
    ONE_KEPT: "mutant:prompt-one-kept-too-many",
    "and at the errors of logits": "mutant:prompt-keeps-last-64",
}
BY_ITS_LAST, SAME_AGAIN = ENGINES["in turn"], ENGINES["which repeats the one before"]


class TakesFew(Quiet, name="in turn: takes 50 tokens"):
    levels = ("greedy",)
    most, why = 50, Unsupported

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        if len(prompt) > self.most:
            raise self.why(f"a buffer of {self.most} tokens")
        return super().greedy(prompt, n)


REFUSES_MANY = made("in turn: refuses more than 50 tokens", TakesFew, why=NoRoom)
DIES_OF_MANY = made("in turn: dies of more than 200", TakesFew, most=200, why=RuntimeError)


def decoded(engine: str, model: Path) -> list[Verdict]:
    return check_engine(model, engine, "decode", n_tokens=32)


@pytest.mark.parametrize(
    ("look", "model"),
    [
        *((look, "f32") for look in ENGINES),
        *((look, "q8_0") for look in ENGINES if look != ONE_KEPT),  # no prompt tells of it there
    ],
)
def test_engine_that_truncates_or_wrongly_reuses_prompts_is_found(
    look: str, model: str, tmp_path: Path
) -> None:
    found = decoded(ENGINES[look], builtin(model, tmp_path))
    wrong = next(v for v in found if v.status == "diverged")
    assert "in turn" not in wrong.summary or look in wrong.summary


class Races(Quiet, name="in turn: is wrong behind every fourth long prompt"):
    """An engine that is wrong occasionally, independently of earlier questions, as if threads
    shared a buffer."""

    levels = ("greedy",)
    n_asked = 0

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        self.n_asked += len(prompt) > 30
        right = super().greedy(prompt, n)
        return right if len(prompt) <= 30 or self.n_asked % 4 else [(right[0] + 1) % 300]


@pytest.mark.parametrize(
    ("engine", "said"),
    [(Races.name, True), (ENGINES[KEPT], False)],
)
def test_threads_are_named_if_the_second_run_is_right(
    engine: str, said: bool, tmp_path: Path
) -> None:
    """The engine `Races` has no cache. A user who examined only caches would not find its fault."""
    with context_of(builtin("f32", tmp_path), engine=engine, suites=("decode",)) as context:
        context.begin_noise()
        (found,) = in_turn(context, context)
    assert found.status == "diverged"
    assert KEPT in found.summary
    assert (
        "asked again after the same prompt, the token is right as well" in found.summary
    ) == said


def test_engine_that_matches_prompts_by_their_end_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "SMALL", 0)
    path = builtin("f32", tmp_path)
    plan = plan_for(path, engine=BY_ITS_LAST, oracle="llama.cpp", suites=("decode",))
    *_, wrong = with_made_models(replace(plan, n_tokens=32))
    assert wrong.status == "diverged"
    assert "which ends like the one before" in wrong.summary


def test_continued_prompt_suggests_no_extra_token(
    tmp_path: Path,
) -> None:
    with context_of(builtin("f32", tmp_path)) as context:
        short, long = (
            TellingPrompt(ids=ids, logits=np.zeros(256, np.float32)) for ids in ([5, 6], [5, 6, 7])
        )
        assert not tells_of_one_more(context, long, short)


def test_text_engine_that_reuses_a_common_prefix_agrees(tmp_path: Path) -> None:
    *_, last = decoded(Reads.name, builtin("f32", tmp_path))
    assert last.status == "agreed"
    assert "tokens, of which 1 repeats the one before" in last.summary
    assert (
        "2 begin like the one before, 1 ends like the one before, 1 begins and ends like"
        in last.summary
    )


@pytest.mark.parametrize(
    ("engine", "status", "says"),
    [
        (TakesFew.name, "agreed", "4 prompts in turn, of 37 to 37 tokens"),
        (REFUSES_MANY, "agreed", "4 prompts in turn, of 37 to 37 tokens"),
        (DIES_OF_MANY, "crashed", "a buffer of 200 tokens"),
    ],
)
def test_engine_with_a_fifty_token_limit_is_tested_within_it(
    engine: str, status: str, says: str, tmp_path: Path
) -> None:
    *_, last = decoded(engine, builtin("f32", tmp_path))
    assert last.status == status
    assert says in last.summary


class DiesOfOne(Reads, name="in turn: keeps the last 64 tokens, dies of one behind others"):
    levels = ("greedy", "logits")

    def read(self, prompt: list[int]) -> list[int]:
        if len(self.last) in range(65, 98) and len(prompt) == 1:
            raise RuntimeError("a prompt of one token")
        return prompt[-64:]


def test_difference_is_reported_though_the_next_question_kills_the_engine(tmp_path: Path) -> None:
    *_, wrong, last = decoded(DiesOfOne.name, builtin("f32", tmp_path))
    assert (wrong.status, wrong.key) == ("diverged", "decode/other prompt")
    assert "it is not answered" in wrong.summary
    assert last.status == "crashed"


def test_known_failure_at_one_prompt_does_not_excuse_another(tmp_path: Path) -> None:
    model = builtin("f32", tmp_path)
    found = [v for e in (BY_ITS_LAST, SAME_AGAIN) for v in decoded(e, model)]
    wrong = [verdict for verdict in found if verdict.key == "decode/other prompt"]
    assert len({place_of(verdict.detail) for verdict in wrong}) == len(wrong) == 2


class KeepsLists(Quiet, name="lists: keeps a prompt"):
    """An engine that reuses a prompt up to the first difference, but compares only `first`
    tokens."""

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


class ByItsFirstFour(KeepsLists, name="lists: keeps a prompt by its first four tokens"):
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


def listed(model: Path, engine: type[Any]) -> list[Verdict]:
    return check_engine(model, engine, "logprobs", n_tokens=24)


def test_list_engine_that_caches_a_common_prefix_agrees(model: Path) -> None:
    (found,) = listed(model, KeepsLists)
    assert found.status == "agreed", found
    assert "the same after a prompt with the same beginning" in found.summary


@pytest.mark.parametrize("engine", [ByItsFirstFour, ByItsFirstFourOfTexts])
def test_list_engine_that_caches_too_much_is_found_with_a_hint(
    engine: type[Any], model: Path
) -> None:
    found = listed(model, engine)
    assert [verdict.status for verdict in found] == ["agreed", "diverged"], found
    assert "after a prompt with a different beginning it is right" in found[1].summary
    assert found[1].detail["at_fault"] == "subject"


def test_wrong_prompt_is_found_by_text_alone(model: Path) -> None:
    found = diverged(check_engine(model, TextByItsFirstFour, "text", n_steps=8))
    assert found
    assert found[0].summary.startswith("after 'Once there was a dog")
    assert "the text is right if the prompt before has a different beginning" in found[0].summary


# --- spaces around a prompt -----------------------------------------------------------------------


class CutsOff(Quiet, name="text: cuts off the spaces around a prompt"):
    levels = ("generate",)

    def generate(self, prompt: bytes, n: int) -> bytes:
        return super().generate(prompt.strip(), n)


def test_engine_that_cuts_off_the_spaces_around_a_prompt_is_reported(model: Path) -> None:
    (found,) = diverged(check_engine(model, CutsOff, "text", n_steps=8))
    assert found.summary.startswith("after '\\n The dog said: '")
    assert (
        "the text is the same without the spaces around it: does the engine strip them?"
        in found.summary
    )
