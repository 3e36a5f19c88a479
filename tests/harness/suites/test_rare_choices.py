"""Of two experts whose scores nearly tie few honest runs choose the other: nobody is blamed."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.engine.quants.base import F32
from lockstep.harness.context.enough_runs import by_chance
from lockstep.harness.context.runs import Run
from lockstep.harness.records import Evaluation, Request
from lockstep.harness.suites.logits import further_verdict
from tests.contexts import context_of
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


ONE, TWO, ZERO = with_rows(r1=2.0), with_rows(r2=1.0), with_rows(r0=3.0)
MOST = with_rows(r0=1.0, r1=1.0, r2=1.0)
FAR = [TRUTH, TWO, with_rows(r2=9.0)]


@pytest.mark.parametrize(
    ("runs", "engines", "explained"),
    [
        ([TRUTH, TWO], [with_rows(r2=1.05)], True),
        ([ONE, TWO], [with_rows(r1=2.0, r2=1.0)], True),  # two choices, met in two runs
        ([TWO, ZERO], [TWO, ZERO], True),  # both engines chose so
        ([TWO, ZERO], [TWO, with_rows(r0=4.0)], False),
        # a row that no honest run gives, however far they are off in it
        *((FAR, [with_rows(r2=wrong)], False) for wrong in (1.5, np.nan, np.inf)),
        ([TWO], [with_rows(r3=1.0)], False),  # one that honest runs never move
        ([MOST], [MOST], False),  # more than half of the rows are no rare choice
        ([TWO], [TRUTH], False),  # blamed without a row that is off
        ([TWO], [TWO, TRUTH], False),
    ],
)
def test_a_few_rows_are_nobodys_fault_where_honest_runs_give_each(
    runs: Sequence[F32], engines: Sequence[F32], explained: bool
) -> None:
    assert by_chance(context(runs), (), TRUTH, engines, ALLOWED) is explained


def test_without_experts_nothing_is_chosen() -> None:
    assert not by_chance(context([TWO], n_expert=0), (), TRUTH, [TWO], ALLOWED)


def test_an_oracle_that_is_wrong_in_a_usual_run_is_not_the_truth_of_it(tmp_path: Path) -> None:
    """With its own logits for the truth no row of it is off, and any honest run explains none."""
    with context_of(builtin("moe", tmp_path)) as context:
        run = Run(words="again", batches=context.batches, usual=True, known=True)
        right = context.answer(
            context.subject,
            "evaluate",
            context.subject.ask("evaluate", Request(batches=run.batches)),
        )
        off = tuple(rows.copy() for rows in right.logits)
        off[0][3, 5] += np.abs(off[0]).max()
        verdict = further_verdict(context, run, Evaluation(logits=off, trace=None), right)
    assert (verdict.status, verdict.detail["at_fault"]) == ("diverged", "oracle")
