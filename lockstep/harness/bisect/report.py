"""A bisection as a report: a verdict for each culprit, and one for the proof."""

import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lockstep.harness.bisect.bisection import NO_OP, Bisection
from lockstep.harness.check.check import Plan
from lockstep.harness.records import Status, Verdict
from lockstep.harness.report.header import header, model_row
from lockstep.harness.report.jsonl import ReportWriter
from lockstep.harness.report.text import explain_finding
from lockstep.harness.suites.trace import by_node, detail_of

SUITE = "bisect"
STATUSES: dict[int, Status] = {0: "agreed", 1: "diverged", 3: "not-compared", NO_OP: "diverged"}


def write_bisection(
    folder: Path,
    plan: Plan,
    result: Bisection,
    command: Sequence[str],
    said: Sequence[str],
    started: float,
) -> Path:
    """report.jsonl and report.html in the folder. said: what the terminal says, in lines."""
    again = shlex.join(command)
    rows = [model_row(plan.case, plan.model, "both")]
    if plan.subject_model != plan.model:
        rows = [model_row(plan.case, plan.model, "oracle")]
        rows.append(model_row(plan.subject_model.name, plan.subject_model, "subject"))
    writer = ReportWriter(folder, header(again, plan.seed, rows, result.engines))
    for verdict in verdicts_of(plan, result, again, said):
        writer.verdict(verdict)
    writer.footer(result.exit_code, time.perf_counter() - started)
    return writer.path


def verdicts_of(
    plan: Plan, result: Bisection, again: str, said: Sequence[str]
) -> Iterator[Verdict]:
    usual: dict[str, Any] = {"suite": SUITE, "case": plan.case, "repro": again}
    for culprit in result.culprits:
        key = "/".join((SUITE, culprit.at_fault, culprit.op, culprit.site.name))
        detail = detail_of(result.found, culprit)
        text = explain_finding(culprit)
        yield Verdict(**usual, status="diverged", summary=text, detail=detail, key=key)
    for verdict in result.others:
        yield Verdict(
            **{**usual, "suite": verdict.suite},
            status=verdict.status,
            summary=verdict.summary,
            detail=verdict.detail,
            key=verdict.key,
        )
    proven = result.patched is not None and result.patched.confirms
    status: Status = "agreed" if proven else STATUSES[result.exit_code]
    yield Verdict(
        **usual,
        status=status,
        summary="\n".join(said) or "nothing was said",
        detail={"bisection": bisection_detail(result), "by_node": by_node(result.found)},
        key=f"{SUITE}/{status}",
    )


def bisection_detail(result: Bisection) -> dict[str, Any]:
    """The layers of the subject's own run, and what putting the oracle's tensors in proves."""
    patched = result.patched
    layers = [
        {"layer": layer.layer, "last": layer.last, "error": layer.error, "guilty": layer.guilty}
        for layer in result.layers
    ]
    if patched is None:
        return {"layers": layers, "proof": None}
    proof: dict[str, Any] = {
        "sites": patched.sites,
        "before": patched.before,
        "after": patched.worst,
    }
    proof |= {"confirms": patched.confirms, "reason": patched.bound.reason}
    return {"layers": layers, "proof": proof | {"what": patched.what}}
