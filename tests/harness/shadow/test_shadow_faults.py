"""Faults injected into a graph: what counts as a fault, faults that are drawn again, and failures
of the judge."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.node import Node
from lockstep.engine.ops.near import Expected
from lockstep.harness.context.runner import Session
from lockstep.harness.records import EXACT, Answered, Captured, Crashed, Fault, Outcome, Verdict
from lockstep.harness.runs.shadow import ShadowPlan, with_trials
from lockstep.harness.shadow.fault_verdicts import (
    ALL,
    NO_FAMILY,
    count_faults,
    detail_of,
    ending_of,
)
from lockstep.harness.shadow.faults import KINDS, TRIES, FaultTrial, Trials
from lockstep.harness.shadow.judge import ShadowJudge
from lockstep.harness.synth.gguf_writer import write_gguf
from tests.shadow_nodes import BUILD, node, normal, piece

X, Y = normal(1, 3, 8), normal(2, 3, 8)
SUM, SQUARE = node("ADD", X + Y, X, Y), replace(node("SQR", X * X, X), index=7)


class Engine(Session):
    """An engine that shows two nodes; a fault adds `off` to an element of its node."""

    name = "fake"

    def __init__(self, off: float, outcome: Outcome | None = None) -> None:
        self.off, self.outcome = np.float32(off), outcome

    def _ask(self, question: str, args: Any, kwargs: Any, consume: Any = None) -> Outcome:
        fault: Fault | None = args[1]
        honest = None
        for one in (SUM, SQUARE):
            value = one.value.copy()
            if fault is not None and fault.index == one.index:
                value[..., 1, 2] += self.off
                honest = None if (value == one.value).all() else one.value
            consume(piece(replace(one, value=value)))
        if fault is not None and self.outcome is not None:
            return self.outcome
        return Answered(value=Captured(nodes=2, views=0, honest=honest), seconds=0.0)


class Blind(ShadowJudge):
    """A judge that accepts everything."""

    def compare(self, *_: Any) -> None:
        pass


class Blaming(ShadowJudge):
    """A judge that also rejects the right result of each SQR node."""

    def compare(self, node: Node, expected: Expected, actual: Any, tally: Any) -> None:
        wrong = actual + 1 if node.op == "SQR" else actual
        super().compare(node, expected, wrong, tally)


class Generous(ShadowJudge):
    """A judge whose bounds are so wide that they hide everything."""

    def expect(self, node: Node) -> tuple[Expected, Any]:
        expected, actual = super().expect(node)
        return replace(expected, allowed=1e9), actual


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., list[FaultTrial]]:
    path = tmp_path / "none.gguf"
    write_gguf(path, {"general.architecture": ("STR", "llama")}, [])

    def trials(
        engine: Session, judge: type[ShadowJudge] = ShadowJudge, n: int = 8
    ) -> list[FaultTrial]:
        file = GgufFile.open(path)
        made = Trials(
            session=engine, batches=(Batch.of([1]),), judge=lambda: judge(file, BUILD), seed=0
        )
        return list(made.run(range(n)))

    return trials


def statuses(trials: list[FaultTrial]) -> set[str]:
    return {ending_of(trial)[0] for trial in trials}


def test_fault_is_found_at_its_node_and_kinds_have_equal_shares(run: Any) -> None:
    found = run(Engine(1e-3))
    assert statuses(found) == {"agreed"}
    assert [t.kind for t in found] == [*KINDS, *KINDS]
    assert {t.injected.place.op for t in found} == {"ADD", "SQR"}
    assert run(Engine(1e-3))[5] == found[5]


@pytest.mark.parametrize("judge", [Blind, Blaming])
def test_judge_that_misses_or_misplaces_a_fault_fails(judge: Any, run: Any) -> None:
    trials = run(Engine(1e-3), judge)
    missed = [t for t in trials if ending_of(t)[0] == "diverged"]
    assert {t.injected.place.op for t in missed} >= {"ADD"}
    assert all(t.injected.found == (judge is Blaming) for t in missed)
    assert not any(t.injected.located for t in missed)


@pytest.mark.parametrize(
    ("engine", "judge", "why"),
    [
        (Engine(0.0), ShadowJudge, "same"),
        (Engine(1e-3), Generous, "small"),
        (Engine(1e-3, Crashed(message="an id that is none")), ShadowJudge, "fatal"),
    ],
)
def test_change_within_the_bound_is_drawn_again(
    engine: Session, judge: Any, why: str, run: Any
) -> None:
    trials = run(engine, judge, 2)
    assert statuses(trials) == {"not-compared"}
    assert all({w for _, w in t.again} == {why} and len(t.again) == TRIES for t in trials)


def test_fault_in_an_unknown_op_is_drawn_again() -> None:
    trial = FaultTrial(number=1, kind="scale", again=[("WISH", "unjudged"), ("ADD", "same")])
    found = [one["family"] for one in detail_of(trial)["again"]]
    assert found == [NO_FAMILY, "elementwise"]


def test_table_counts_injected_found_and_redrawn_faults(run: Any) -> None:
    trials = run(Engine(1e-3)) + run(Engine(1e-3), Blind) + run(Engine(0.0), n=1)
    verdicts = [
        Verdict(suite="shadow", case="c", status="agreed", summary="", detail=detail_of(t))
        for t in trials
    ]
    counts = count_faults(verdicts)
    assert list(counts) == ["elementwise", ALL]
    every = counts[ALL]
    assert (every.injected.total(), every.found.total(), every.located) == (16, 8, 8)
    assert every.injected["swap"] == 2 * every.found["swap"] == 4
    assert every.again == {"same": TRIES}


def test_trials_are_spread_over_all_models_and_repeatable() -> None:
    plans = [
        ShadowPlan(case=name, model=Path(name), settings=EXACT, seed=3, options=("--seed", "3"))
        for name in "abcde"
    ]
    dealt = with_trials(plans, range(10, 22))
    assert sorted(n for plan in dealt for n in plan.trials) == list(range(10, 22))
    assert {len(plan.trials) for plan in dealt} == {2, 3}
    assert len(with_trials(plans, range(2))) == 2
    one = next(dealt[0].by_trial)
    again = with_trials([replace(plans[0], seed=3)], range(one.trials[0], one.trials[0] + 1))
    assert again[0].trials == one.trials
    assert one.repro == f"lockstep shadow {one.case} --seed 3 --faults 1 --start {one.trials[0]}"
