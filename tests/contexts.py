"""Verdicts of a check on an engine, and a context that closes after a test."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lockstep.harness.adapters.base import Adapter
from lockstep.harness.check.check import Plan, open_plan, run_suites
from lockstep.harness.context.suite import Context
from lockstep.harness.records import Verdict
from tests.harness.check.test_check import plan_for


@contextmanager
def context_of(model: Path | Plan, **changes: Any) -> Iterator[Context]:
    """Yield an open context. changes: fields of the plan that differ from the defaults."""
    plan = plan_for(model, **changes) if isinstance(model, Path) else model
    opened = open_plan(plan, lambda _: None)
    try:
        yield opened.context
    finally:
        opened.close()


def check_engine(
    model: Path, engine: str | type[Adapter] = "reference", *suites: str, **changes: Any
) -> list[Verdict]:
    """Return the verdicts of the named suites, or of all suites if none are named."""
    name = engine if isinstance(engine, str) else engine.name
    with context_of(model, engine=name, suites=suites, **changes) as context:
        return list(run_suites(context, suites))


def statuses(found: Iterable[Verdict]) -> set[str]:
    return {verdict.status for verdict in found}


def diverged(found: Iterable[Verdict]) -> list[Verdict]:
    return [verdict for verdict in found if verdict.status == "diverged"]
