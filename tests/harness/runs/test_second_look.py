"""A second comparison explains a divergence only if its verdicts agree."""

import pytest

from lockstep.harness.check.check import Opened, Plan
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.records import EXACT, Status, Verdict
from lockstep.harness.runs.second_look import is_explained, verdicts_on
from tests.places import ROOT


def verdict(status: Status) -> Verdict:
    return Verdict(suite="logits", case="x", status=status, summary="")


@pytest.mark.parametrize(
    ("statuses", "explained"),
    [
        (["agreed"], True),
        (["agreed", "excused", "not-applicable"], True),
        ([], False),
        (["not-applicable", "excused"], False),
        (["agreed", "diverged"], False),
        (["agreed", "not-compared"], False),
    ],
)
def test_divergence_is_explained_only_by_an_agreement(
    statuses: list[Status], explained: bool
) -> None:
    assert is_explained(list(map(verdict, statuses))) is explained


def test_engine_that_cannot_be_asked_again_explains_nothing() -> None:
    def opened(plan: Plan) -> Opened:
        raise NoAnswer("crashed", "it died", {})

    plan = Plan(case="x", model=ROOT, subject_model=ROOT, settings=EXACT)
    assert not is_explained(verdicts_on(plan, opened))
