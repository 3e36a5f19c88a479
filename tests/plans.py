"""Plans with one model: their verdicts and their bisection."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.harness.bisect.bisection import Bisection, bisect
from lockstep.harness.check.check import Opened, Plan, open_plan, run_suites
from lockstep.harness.records import EXACT, Verdict


def plan_of(model: Path, engine: str = "reference", **changes: Any) -> Plan:
    """Return a plan that compares the engine with llama.cpp by default."""
    plan = Plan(case=model.name, model=model, subject_model=model, engine=engine, settings=EXACT)
    return replace(plan, **({"command": str(model)} | changes))


@contextmanager
def open_both(plan: Plan) -> Iterator[Opened]:
    both = open_plan(plan, lambda _: None)
    try:
        yield both
    finally:
        both.close()


def verdicts_of(plan: Plan, *suites: str) -> list[Verdict]:
    """Return the verdicts of the named suites, or else of the plan's suites."""
    with open_both(plan) as both:
        return list(run_suites(both.context, suites or plan.suites))


def bisection_of(plan: Plan) -> Bisection:
    with open_both(plan) as both:
        return bisect(both.context)
