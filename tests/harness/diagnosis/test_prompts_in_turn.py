"""What an engine keeps of one prompt for the next is known by prompts that are asked in turn."""

from pathlib import Path

import pytest

from lockstep.harness.catalogue.views import LOGITS, TEXT, View
from tests.harness.diagnosis.test_diagnosis import CATALOGUE, diagnosed, names, runs

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
def test_what_is_kept_of_a_prompt_or_cut_off_it_is_named(
    mistake: str, view: View, tmp_path: Path
) -> None:
    """Its answers depend on what was asked before: known mistakes are asked in the same order."""
    found = runs(diagnosed(mistake, tmp_path, view=view, known=KNOWN))
    assert (found.status, names(found)) == ("named", [mistake])


@pytest.mark.parametrize("mistake", [TOO_MANY, BY_BEGINNING])
def test_two_that_choose_the_same_behind_most_of_them_are_named_apart(
    mistake: str, tmp_path: Path
) -> None:
    """By the prompt that was looked for so that one token too many is seen."""
    found = runs(diagnosed(mistake, tmp_path, view=LOGITS, known=KNOWN))
    assert (found.status, names(found)) == ("named", [mistake])


@pytest.mark.parametrize("view", [LOGITS, TEXT], ids=lambda view: view.name)
@pytest.mark.parametrize("mistake", [LAST, BY_LENGTH, NOT_CLEARED])
def test_none_of_the_others_is_named_in_its_place(mistake: str, view: View, tmp_path: Path) -> None:
    known = tuple(name for name in KNOWN if name != mistake)
    found = runs(diagnosed(mistake, tmp_path, view=view, known=known))
    assert (found.status, names(found)) == ("none", [])


def test_a_text_that_goes_wrong_late_is_known_of_an_engine_with_logits_too(tmp_path: Path) -> None:
    """As many tokens are asked for as `check` asks for."""
    late = "mutant:greedy-position-late"
    found = runs(diagnosed(late, tmp_path, view=LOGITS, known=(late, *KNOWN)))
    assert (found.status, names(found)) == ("named", [late])
