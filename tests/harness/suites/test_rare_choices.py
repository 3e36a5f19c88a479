"""Of two experts whose scores nearly tie few honest runs choose the other: nobody is blamed."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.engine.quants.base import F32
from lockstep.harness.check.check import open_plan
from lockstep.harness.context.by_chance import by_chance
from lockstep.harness.context.runs import Run
from lockstep.harness.records import Evaluation, Request
from lockstep.harness.suites.logits import further_verdict
from tests.harness.check.test_check import plan_for
from tests.models import builtin

TRUTH = np.zeros((4, 3), np.float32)
ALLOWED = 0.1


def with_rows(**rows: float) -> F32:
    """The truth, but for a few rows: r2=1.0 is the third."""
    found = TRUTH.copy()
    for name, value in rows.items():
        found[int(name[1:])] = value
    return found


def context(runs: Sequence[F32], n_expert: int = 8) -> Any:
    """Of a model whose honest runs give these."""

    def unlucky(batches: Any, *, seed: int, runs: int) -> Iterator[F32]:
        return iter(every)

    every = runs
    key = SimpleNamespace(data=n_expert)
    return SimpleNamespace(
        file=SimpleNamespace(metadata={"a.expert_count": key}, tensors={}),
        facts=SimpleNamespace(architecture="a"),
        honest=SimpleNamespace(unlucky=unlucky),
        progress=lambda text: None,
        seed=0,
    )


def explained(runs: Sequence[F32], *engines: F32, n_expert: int = 8) -> bool:
    return by_chance(context(runs, n_expert), (), TRUTH, engines, ALLOWED)


def test_a_row_that_an_honest_run_gives_is_nobodys_fault() -> None:
    assert explained([TRUTH, with_rows(r2=1.0)], with_rows(r2=1.05))


def test_two_choices_may_be_met_in_two_runs() -> None:
    assert explained([with_rows(r1=2.0), with_rows(r2=1.0)], with_rows(r1=2.0, r2=1.0))


def test_both_engines_may_have_chosen_so() -> None:
    runs = [with_rows(r2=1.0), with_rows(r0=3.0)]
    assert explained(runs, with_rows(r2=1.0), with_rows(r0=3.0))
    assert not explained(runs, with_rows(r2=1.0), with_rows(r0=4.0))


@pytest.mark.parametrize("wrong", [1.5, np.nan, np.inf])
def test_a_row_that_no_honest_run_gives_is_a_fault(wrong: float) -> None:
    """However far honest runs are off in it."""
    assert not explained([TRUTH, with_rows(r2=1.0), with_rows(r2=9.0)], with_rows(r2=wrong))


def test_a_row_that_honest_runs_never_move_is_a_fault() -> None:
    assert not explained([with_rows(r2=1.0)], with_rows(r3=1.0))


def test_more_than_half_of_the_rows_are_no_rare_choice() -> None:
    off = with_rows(r0=1.0, r1=1.0, r2=1.0)
    assert not explained([off], off)


def test_an_engine_without_a_row_that_is_off_is_not_explained() -> None:
    assert not explained([with_rows(r2=1.0)], TRUTH)
    assert not explained([with_rows(r2=1.0)], with_rows(r2=1.0), TRUTH)


def test_without_experts_nothing_is_chosen() -> None:
    assert not explained([with_rows(r2=1.0)], with_rows(r2=1.0), n_expert=0)


def test_an_oracle_that_is_wrong_in_a_usual_run_is_not_the_truth_of_it(tmp_path: Path) -> None:
    """With its own logits for the truth no row of it is off, and any honest run explains none."""
    opened = open_plan(plan_for(builtin("moe", tmp_path)), lambda _: None)
    try:
        context = opened.context
        run = Run(words="again", batches=context.batches, usual=True, known=True)
        right = context.answer(
            context.subject,
            "evaluate",
            context.subject.ask("evaluate", Request(batches=run.batches)),
        )
        off = tuple(rows.copy() for rows in right.logits)
        off[0][3, 5] += np.abs(off[0]).max()
        verdict = further_verdict(context, run, Evaluation(logits=off, trace=None), right)
    finally:
        opened.close()
    assert (verdict.status, verdict.detail["at_fault"]) == ("diverged", "oracle")
