"""Verdicts of a diagnosis. Each aspect of the engine has a verdict, and its missing answers have
one."""

from collections.abc import Iterator
from dataclasses import asdict

from lockstep.harness.check.check import Plan
from lockstep.harness.diagnosis.diagnosis import Diagnosed, Status
from lockstep.harness.records import Status as VerdictStatus
from lockstep.harness.records import Verdict

SUITE = "diagnose"
STATUSES: dict[Status, VerdictStatus] = {"right": "agreed", "not-compared": "not-compared"}


def verdicts_of(
    plan: Plan, found: Diagnosed, again: str, said: dict[str, list[str]]
) -> Iterator[Verdict]:
    """Yield the verdicts. `again` is the command that reproduces them; `said` holds the terminal's
    lines by aspect."""
    for each in found.of:
        status = STATUSES.get(each.status, "diverged")
        yield Verdict(
            suite=SUITE,
            case=plan.case,
            status=status,
            summary="\n".join(said[each.aspect]),
            detail={"where": each.aspect, **asdict(each)},
            key=f"{SUITE}/{each.aspect}/{each.status}" if status == "diverged" else "",
            repro=again,
        )
    for text in found.missing:
        yield Verdict(
            suite=SUITE,
            case=plan.case,
            status="not-compared",
            summary=f"not answered: {text}",
            detail={},
            key="",
            repro=again,
        )
