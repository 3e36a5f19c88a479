"""The report of a command on one plan: report.jsonl and its page in a new folder."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.harness.check.check import Plan
from lockstep.harness.records import EngineInfo, Verdict
from lockstep.harness.report.header import header, model_row
from lockstep.harness.report.jsonl import ReportWriter


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """The facts for a report. `command` is the command as typed; `started` is the start time by
    time.perf_counter()."""

    plan: Plan
    engines: Sequence[EngineInfo]
    verdicts: Iterable[Verdict]
    command: str
    exit_code: int
    started: float


def write_plan_report(folder: Path, found: PlanReport) -> Path:
    plan = found.plan
    rows = [model_row(plan.case, plan.model, "both")]
    if plan.subject_model != plan.model:
        rows = [model_row(plan.case, plan.model, "oracle")]
        rows.append(model_row(plan.subject_model.name, plan.subject_model, "subject"))
    writer = ReportWriter(folder, header(found.command, plan.seed, rows, found.engines))
    for verdict in found.verdicts:
        writer.verdict(verdict)
    writer.footer(found.exit_code, time.perf_counter() - found.started)
    return writer.path
