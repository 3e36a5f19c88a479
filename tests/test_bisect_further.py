"""`bisect` finds what `check` finds, or says that no op is guilty of it."""

from pathlib import Path

import pytest

from engine.registry import import_members
from harness.bisect.bisection import NO_OP, Bisection, bisect
from harness.check import open_plan
from harness.cli.bisection import bisection_lines
from tests.models import builtin
from tests.test_check import plan_for

import_members("harness.mutants")


def bisected(name: str, folder: Path) -> tuple[Bisection, str]:
    plan = plan_for(builtin("f32", folder), engine=name, n_steps=8)
    opened = open_plan(plan, lambda _: None)
    try:
        found = bisect(opened.context)
    finally:
        opened.close()
    return found, "\n".join(bisection_lines(plan, found))


def test_a_fault_behind_64_cells_is_found_in_a_longer_run_and_confirmed(tmp_path: Path) -> None:
    found, words = bisected("mutant:cache-cells-beyond-64", tmp_path)
    assert found.first is not None
    assert (found.exit_code, str(found.first.site)) == (1, "kq_soft_max-0")
    assert "in batches of" in found.asked
    assert found.asked in words
    assert found.patched is not None
    assert found.patched.confirms


def test_a_wrong_choice_of_tokens_is_the_fault_of_no_op(tmp_path: Path) -> None:
    found, words = bisected("mutant:greedy-second-best", tmp_path)
    assert not found.culprits
    assert found.exit_code == NO_OP
    assert {verdict.suite for verdict in found.others} == {"decode"}
    assert "no op is wrong on its own inputs" in words


@pytest.mark.parametrize("name", ["mutant:race-head-lost", "mutant:race-sum-of-parts"])
def test_of_an_engine_that_is_not_deterministic_no_patch_confirms_anything(
    name: str, tmp_path: Path
) -> None:
    found, words = bisected(name, tmp_path)
    assert found.exit_code in (1, NO_OP)
    assert found.patched is None
    assert found.unsteady is not None
    assert "is not deterministic" in words


def test_of_an_honest_engine_nothing_is_said(tmp_path: Path) -> None:
    found, words = bisected("honest:silu-tanh", tmp_path)
    assert (found.exit_code, found.others, found.asked) == (0, (), "")
    assert "nothing to find" in words
