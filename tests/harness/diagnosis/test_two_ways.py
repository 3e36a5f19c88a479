"""Mistakes are tried with ggml's roundings and without them. A mistake without any effect is tried
only once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.harness.adapters import adapter_class
from lockstep.harness.diagnosis.asking import AskedQuestion
from lockstep.harness.diagnosis.compared import Compared
from lockstep.harness.diagnosis.engines import without_roundings
from lockstep.harness.diagnosis.questions import Greedy, RunQuestion
from lockstep.harness.diagnosis.race import (
    HeldAnswers,
    TriedMistake,
    is_as_right,
    reaching,
    so_far,
)
from tests.harness.diagnosis.test_diagnosis import HALVES, diagnosed, names, runs

RUN = AskedQuestion(question=RunQuestion(words="the logits", batches=(Batch.of([1]),)), said=None)
TEXT = AskedQuestion(question=Greedy(words="a text", ids=(1,), n=2), said=None)


def rows(*apart: float) -> Compared:
    return Compared(same=np.array([not x for x in apart]), apart=np.array(apart))


@pytest.mark.parametrize(
    ("one", "own", "right", "as_right"),
    [
        (RUN, (0.5, 0.25), (0.5, 0.25), True),
        (RUN, (0.5, 0.2500001), (0.5, 0.25), False),
        (RUN, (0.0, 0.0), (0.0, 0.0), False),  # no difference, so nothing can be learned
        (RUN, (np.inf, 0.0), (np.inf, 0.0), False),  # infinite differences give no ratio
        (TEXT, (0.0, 1.0), (0.0, 1.0), False),  # the tokens may differ from a third engine's
    ],
)
def test_rows_with_the_right_engines_exact_error_are_recognised(
    one: AskedQuestion, own: Any, right: Any, as_right: bool
) -> None:
    assert is_as_right(one, rows(*own), rows(*right)) == as_right


def test_mistake_without_effect_at_the_difference_is_not_tried_again() -> None:
    idle, other, elsewhere = (type(name, (), {}) for name in ("Idle", "Other", "Elsewhere"))
    before = [
        TriedMistake(cls=idle, survived=False, left=1.0, as_right=frozenset({"the logits"})),
        TriedMistake(cls=other, survived=False, left=0.9),
        TriedMistake(cls=elsewhere, survived=False, left=1.0, as_right=frozenset({"others"})),
    ]
    of = HeldAnswers(every=(RUN,), right=(rows(0.5),), noise=0.0)
    assert reaching([idle, other, elsewhere], of, before) == [other, elsewhere]
    assert reaching([idle, other, elsewhere], of, []) == [idle, other, elsewhere]


def test_progress_names_the_best_explanation_so_far() -> None:
    eps = type("Eps", (), {"mistake": "the eps is another one"})
    far, near, same = (
        TriedMistake(cls=eps, survived=left == 0, left=left) for left in (0.4, 0.03, 0.0)
    )
    assert so_far(None) == so_far(far) == ""
    assert so_far(near) == "; the closest leaves 3% of the difference: the eps is another one"
    assert so_far(same) == "; one reproduces these answers: the eps is another one"


def test_mistake_of_an_engine_without_conversions_is_named(tmp_path: Path) -> None:
    wrong = without_roundings(adapter_class(HALVES))
    known = (HALVES, "mutant:missing-scale", "mutant:rope-other-way", "mutant:dt-bias-missing")
    found = runs(diagnosed(wrong, tmp_path, model="q8_0", noise=1e-6, known=known))
    assert (found.status, names(found)) == ("named", [HALVES])
