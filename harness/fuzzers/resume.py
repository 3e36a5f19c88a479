"""Continues a stopped campaign at the end of its report, and extends the same report."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.harness.check.check import BadInput
from lockstep.harness.fuzzers.base import FuzzPlan, engines_of, fuzzer_named, rest_of, write_run
from lockstep.harness.parallel.works import Executor
from lockstep.harness.records import PRESETS, EngineInfo, Verdict
from lockstep.harness.report.jsonl import BrokenReport, ReportWriter, read_unfinished
from lockstep.harness.runs.result import RunResult
from lockstep.harness.runs.run import Listener

Rows = Sequence[Mapping[str, Any]]


def resume_campaign(
    name: str,
    folder: Path,
    executor: Executor | None = None,
    listener: Listener | None = None,
) -> RunResult:
    """Continue a campaign with the plan in its report. Findings that the report has are not
    reported again."""
    path = folder / "report.jsonl"
    if not path.is_file():
        raise BadInput(f"{folder} has no report.jsonl, so there is no run to continue")
    try:
        rows = read_unfinished(path)
    except BrokenReport as error:
        raise BadInput(str(error)) from error
    fuzzer_name = rows[0].get("campaign", {}).get("fuzzer")
    if fuzzer_name != name:
        raise BadInput(f"{folder}: a report of {fuzzer_name or 'no fuzzer'}, expected {name}")
    if rows[-1]["kind"] == "footer":
        raise BadInput(f"{folder}: the run has finished; start another run with --start")
    fuzzer = fuzzer_named(name)
    plan = plan_in(folder, rows[0])
    fuzzer.check(plan)
    engines = engines_of(plan)
    check_engines(folder, rows[0]["engines"], engines)
    left = [rest for target in plan.targets if (rest := left_of(plan, target, rows)).cases > 0]
    before = [verdict_of(row) for row in rows if row["kind"] == "verdict"]
    writer = ReportWriter.go_on(path, rows)
    return write_run(fuzzer, left, writer, engines, executor, listener or Listener(), before=before)


def check_engines(folder: Path, then: Rows, now: Sequence[EngineInfo]) -> None:
    """Check that both engines have the versions and builds in the report's header. Raises
    BadInput.
    """
    for row, info in zip(then, now, strict=True):
        before, here = f"{row['version']} {row['build']}", f"{info.version} {info.build}"
        if before != here:
            raise BadInput(
                f"{folder}: the run had {info.engine} {before.strip()}, and this machine "
                f"has {here.strip()}: start another run with --start"
            )


def plan_in(folder: Path, header: Mapping[str, Any]) -> FuzzPlan:
    """Return the plan in a report's header. Raises BadInput if the report is not from a
    campaign."""
    try:
        return plan_of(header)
    except (KeyError, TypeError, ValueError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise BadInput(f"{folder}: the report is not from a campaign: {what:.200}") from error


def plan_of(header: Mapping[str, Any]) -> FuzzPlan:
    campaign, (oracle, subject) = header["campaign"], header["engines"]
    return FuzzPlan(
        targets=tuple(campaign["targets"]),
        engine=subject["engine"],
        oracle=oracle["engine"],
        cases=campaign["cases"],
        start=campaign["start"],
        seconds=campaign["seconds"],
        seed=header["seed"],
        given=tuple(bytes.fromhex(case) for case in campaign["given"]),
        files=tuple(Path(path) for path in campaign.get("files", ())),
        corpus=Path(campaign["corpus"]) if "corpus" in campaign else None,
        witness=campaign.get("witness", True),
        keep=Path(campaign["keep"]) if "keep" in campaign else None,
        settings=PRESETS[subject["settings"]["name"]],
    )


def left_of(plan: FuzzPlan, target: str, rows: Rows) -> FuzzPlan:
    """Return the plan for the rest of a target. It has no cases if nothing remains."""
    done = [r["done"] for r in rows if r["kind"] == "checkpoint" and r["target"] == target]
    keys = [r["key"] for r in rows if r["kind"] == "verdict" and r["case"] == target]
    return rest_of(replace(plan, targets=(target,)), done, keys)


def verdict_of(row: Mapping[str, Any]) -> Verdict:
    return Verdict(**{name: value for name, value in row.items() if name != "kind"})
