"""Checks one model from Python, for scripts (`lockstep.check`) and for the pytest plugin."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.engine.errors import EngineError
from lockstep.harness.check.check import BadInput, Plan
from lockstep.harness.check.settings import settings_named
from lockstep.harness.http.session import preset_for
from lockstep.harness.parallel.works import Forks
from lockstep.harness.runs.known_failures import read_known
from lockstep.harness.runs.result import RunResult
from lockstep.harness.runs.run import Listener, run_plans


def plan_for_model(model: Path, engine: str, *, settings: str | None, **of_plan: Any) -> Plan:
    """Return a plan in which both engines run this model. `of_plan` holds the other fields of Plan.
    Raises BadInput."""
    settings = settings or preset_for(engine)
    return Plan(
        case=model.name,
        model=model,
        subject_model=model,
        engine=engine,
        settings=settings_named(settings),
        command=shlex.join([str(model), "--engine", engine, "--settings", settings]),
        **of_plan,
    )


def check_model(
    plan: Plan, reports: Path, *, known: Path | None = None, command: Sequence[str] = ()
) -> RunResult:
    """Run the plan, and write the report into a new folder in `reports`. Raises BadInput."""
    listed = read_known(known) if known else None
    command = command or ["lockstep", "check", *shlex.split(plan.command)]
    try:
        return run_plans([plan], reports, command, Forks(1), Listener(), listed)
    except EngineError as error:
        raise BadInput(str(error)) from error
