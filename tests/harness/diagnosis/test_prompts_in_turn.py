"""Faults in data that an engine keeps from one prompt to the next. Prompts in sequence show such
faults."""

from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise, takewhile
from pathlib import Path

import pytest

from lockstep.harness.catalogue.views import LOGITS, TEXT, View
from lockstep.harness.check.check import open_plan
from lockstep.harness.diagnosis.asking import prompts_in_turn
from tests.harness.check.test_check import plan_for
from tests.harness.diagnosis.test_diagnosis import CATALOGUE, diagnosed, names, runs
from tests.models import builtin

LAST = "mutant:prompt-beginning-of-last"
BY_LENGTH = "mutant:prompt-of-the-same-length"
NOT_CLEARED = "mutant:cache-not-cleared"
CUT = "mutant:prompt-keeps-last-32"
CUT_LATER = "mutant:prompt-keeps-last-64"
TOO_MANY = "mutant:prompt-one-kept-too-many"
BY_BEGINNING = "mutant:prompt-found-by-its-first-four"
KNOWN = (LAST, BY_LENGTH, NOT_CLEARED, CUT, CUT_LATER, TOO_MANY, BY_BEGINNING, *CATALOGUE)


@pytest.mark.parametrize("view", [LOGITS, TEXT], ids=lambda view: view.name)
@pytest.mark.parametrize("mistake", [LAST, BY_LENGTH, NOT_CLEARED, CUT, CUT_LATER])
def test_mistake_of_a_kept_or_cut_prompt_is_named(mistake: str, view: View, tmp_path: Path) -> None:
    """The answers depend on earlier questions, so known mistakes get the questions in the same
    order."""
    found = runs(diagnosed(mistake, tmp_path, view=view, known=KNOWN))
    assert (found.status, names(found)) == ("named", [mistake])


@pytest.mark.parametrize("mistake", [TOO_MANY, BY_BEGINNING])
def test_mistakes_with_mostly_equal_choices_are_named_separately(
    mistake: str, tmp_path: Path
) -> None:
    """One of the prompts shows a token too many, and thereby distinguishes the mistakes."""
    found = runs(diagnosed(mistake, tmp_path, view=LOGITS, known=KNOWN))
    assert (found.status, names(found)) == ("named", [mistake])


@pytest.mark.parametrize("view", [LOGITS, TEXT], ids=lambda view: view.name)
@pytest.mark.parametrize("mistake", [LAST, BY_LENGTH, NOT_CLEARED])
def test_prompt_mistakes_are_not_confused(mistake: str, view: View, tmp_path: Path) -> None:
    known = tuple(name for name in KNOWN if name != mistake)
    found = runs(diagnosed(mistake, tmp_path, view=view, known=known))
    assert (found.status, names(found)) == ("none", [])


def test_late_text_fault_is_recognised_for_an_engine_with_logits(tmp_path: Path) -> None:
    """The diagnosis asks for as many tokens as `check` does."""
    late = "mutant:greedy-position-late"
    found = runs(diagnosed(late, tmp_path, view=LOGITS, known=(late, *KNOWN)))
    assert (found.status, names(found)) == ("named", [late])


def test_large_model_is_not_asked_for_a_prompt_without_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated prompt has no new tokens, and engines fail on a prompt of no tokens."""
    monkeypatch.setattr("lockstep.harness.diagnosis.asking.is_small", lambda file: False)
    with closing(
        open_plan(plan_for(builtin("f32", tmp_path), oracle="reference"), lambda _: None)
    ) as opened:
        (asked,) = prompts_in_turn(opened.context)
    assert [len(ids) for ids in asked.prompts] == [1, 37, 37, 37, 37, *[59] * 5, 97]
    first, second = asked.prompts[2:4]
    assert first == second != asked.prompts[4]
    one, middle, almost, end, between = asked.prompts[5:10]
    assert [shared(a, b) for a, b in pairwise((one, middle, almost))] == [29, 57]
    assert (shared(almost, end), shared(almost[::-1], end[::-1])) == (0, 27)
    assert (shared(end, between), shared(end[::-1], between[::-1])) == (19, 6)


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of ids with which both lists begin."""
    alike = (a == b for a, b in zip(one, other, strict=True))
    return sum(1 for _ in takewhile(bool, alike))
