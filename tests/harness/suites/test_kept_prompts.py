"""Engines that keep a prompt's keys and values for the next: rightly, and further than is right."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.records import Verdict
from tests.contexts import check_engine, diverged
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
    return check_engine(model, engine, "logprobs", n_tokens=24)


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
    found = diverged(check_engine(model, TextByItsFirstFour, "text", n_steps=8))
    assert found
    assert found[0].summary.startswith("behind 'Once there was a dog")
    assert "not asked right behind one that begins alike" in found[0].summary


# --- spaces around a prompt -----------------------------------------------------------------------


class CutsOff(Quiet, name="text: cuts off the spaces around a prompt"):
    levels = ("generate",)

    def generate(self, prompt: bytes, n: int) -> bytes:
        return super().generate(prompt.strip(), n)


def test_who_cuts_off_the_spaces_around_a_prompt_is_told_so(model: Path) -> None:
    (found,) = diverged(check_engine(model, CutsOff, "text", n_steps=8))
    assert found.summary.startswith("behind '\\n The dog said: '")
    assert "it is the same without the spaces around it: are they cut off?" in found.summary
