"""The report of a bisection, with a verdict for each culprit, and a verdict for the proof."""

from collections.abc import Iterator, Sequence
from typing import Any

from lockstep.harness.bisect.bisection import NO_OP, Bisection
from lockstep.harness.check.check import Plan
from lockstep.harness.records import Status, Verdict
from lockstep.harness.report.text import explain_finding
from lockstep.harness.suites.parts.tensor_suite import detail_of
from lockstep.harness.suites.trace import by_node

SUITE = "bisect"
STATUSES: dict[int, Status] = {0: "agreed", 1: "diverged", 3: "not-compared", NO_OP: "diverged"}


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
    # the culprits' own verdicts report the differences, and this verdict reports the proof
    open_proof = "not-compared" if result.culprits else STATUSES[result.exit_code]
    status: Status = "agreed" if proven else open_proof
    yield Verdict(
        **usual,
        status=status,
        summary="\n".join(said) or "no findings",
        detail={"bisection": bisection_detail(result), "by_node": by_node(result.found)},
        key=f"{SUITE}/{status}",
    )


def bisection_detail(result: Bisection) -> dict[str, Any]:
    """Return the layers of the subject's own run, and the result of the proof."""
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
