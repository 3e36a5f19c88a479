"""Ties are wider if logits are larger. Therefore an engine with larger logits and the right choices
matches many wrong texts within its ties, although it writes different texts."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.quants.base import F32
from lockstep.harness.catalogue.views import TEXT
from lockstep.harness.diagnosis.compared import Compared
from tests.harness.diagnosis.test_diagnosis import diagnosed, names, runs, with_product

# subtracts one constant from all logits of a row, so that the largest magnitude grows
LOGARITHMS = "mutant:log-probabilities-for-logits"
HALVES = "mutant:rope-half-split"
NOISE = 1e-2  # share of the largest logit; models of Q8_0 have up to twice as much


def of_single_rows(out: F32) -> F32:
    """Return the output of a kernel that is wrong for a single row. A real engine had this
    fault."""
    return out if len(out) > 1 else out + np.float32(0.6) * np.roll(out, 5)


def test_engine_with_the_right_choices_is_not_named_by_ties(tmp_path: Path) -> None:
    wrong = with_product(of_single_rows)
    found = runs(diagnosed(wrong, tmp_path, view=TEXT, noise=NOISE, known=(LOGARITHMS,)))
    assert found.status == "none"
    assert found.tried == 1


def test_mistake_that_reproduces_the_text_is_named(tmp_path: Path) -> None:
    known = (LOGARITHMS, HALVES)
    found = runs(diagnosed(HALVES, tmp_path, view=TEXT, noise=NOISE, known=known))
    assert names(found) == [HALVES]


@pytest.mark.parametrize(("ties", "chosen"), [(0, 3), (2, 1)])
def test_token_in_a_tie_does_not_count_as_a_choice(ties: int, chosen: int) -> None:
    assert Compared.exactly([True, True, False, True], ties=ties).chosen == chosen
