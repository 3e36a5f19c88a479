"""The harness catches every wrong engine and finds the place of its fault."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.harness.adapters.base import Adapter
from lockstep.harness.bisect.bisection import bisect
from lockstep.harness.check.check import Plan, run_suites
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.mutants.base import Mutant
from lockstep.harness.selftest.selftest import mutants
from tests.differential.conftest import OpenPlan

MUTANTS = mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda cls: cls.name)
def test_wrong_engine_is_caught_and_located(
    mutant: type[Mutant],
    models: Callable[[str], Path],
    plan_for: Callable[..., Plan],
    open_for: OpenPlan,
) -> None:
    path = models(mutant.shows_on)
    plan = plan_for(path, engine=mutant.name, n_steps=4)
    with open_for(plan) as opened:
        verdicts = list(run_suites(opened.context, ("trace",)))  # only this suite shows the place
        result = bisect(opened.context)
    assert exit_code(verdicts) == 1
    first = result.first
    assert first is not None
    assert (first.site.layer, first.site.name) == (mutant.layer, mutant.site)
    assert first.at_fault == "subject"
    assert result.patched is not None
    assert result.patched.confirms is mutant.moves_logits
    traced = [verdict.detail for verdict in verdicts if verdict.status == "diverged"]
    assert (mutant.layer, mutant.site) in {(row["layer"], row["site"]) for row in traced}
    assert all(row["reason"] for row in traced)


def test_every_wrong_engine_of_the_family_is_tested() -> None:
    members = {name: cls for name, cls in Adapter.family.items() if issubclass(cls, Mutant)}
    family = {name for name, cls in members.items() if cls.first_of_all}
    assert family == {cls.name for cls in MUTANTS}
    assert len(family) >= 12
