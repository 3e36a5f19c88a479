"""Verdicts on injected faults, and counts by kind and family of ops."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lockstep.engine.ops.ggml.base import family_of, has_meaning
from lockstep.harness.records import Status, Verdict
from lockstep.harness.shadow.faults import TRIES, FaultTrial
from lockstep.harness.shadow.verdicts import SUITE

ALL = "all"
NO_FAMILY = "without a meaning"  # ops without a known meaning, whose faults cannot be judged


def ending_of(trial: FaultTrial) -> tuple[Status, str, tuple[str, ...]]:
    """Return the status, the summary and the key of a trial's verdict."""
    what, injected = f"fault {trial.number}: {trial.kind}", trial.injected
    if injected is None:
        why = ", ".join(f"{n} {reason}" for reason, n in Counter(r for _, r in trial.again).items())
        return "not-compared", f"{what}: {TRIES} draws gave no fault ({why})", (SUITE, "no-fault")
    at = injected.place
    what += f" of {injected.size:.2g} bounds in {at.op} at node {at.index} of step {at.step}"
    if injected.located:
        return "agreed", f"{what} ({at.name}) is found there", ()
    places = ", ".join(f"{f.op} at node {f.index}" for f in injected.seen) or "nowhere"
    return "diverged", f"{what} ({at.name}) is found {places}", (SUITE, "missed", at.op, trial.kind)


def detail_of(trial: FaultTrial) -> dict[str, Any]:
    again = [{"op": op, "family": known_family(op), "why": why} for op, why in trial.again]
    detail: dict[str, Any] = {"trial": trial.number, "kind": trial.kind, "again": again}
    if (injected := trial.injected) is None:
        return detail
    return detail | {
        "family": family_of(injected.place.op),
        "place": asdict(injected.place),
        "fault": asdict(injected.fault),
        "size": injected.size,
        "seen": [asdict(place) for place in injected.seen],
        "found": injected.found,
        "located": injected.located,
    }


def known_family(op: str) -> str:
    return family_of(op) if has_meaning(op) else NO_FAMILY


@dataclass(kw_only=True)
class Count:
    """The counts of one family of ops, or of all ops."""

    injected: Counter[str] = field(default_factory=Counter)  # by kind of fault
    found: Counter[str] = field(default_factory=Counter)
    located: int = 0
    smallest: float = float("inf")  # smallest injected change, in limits
    again: Counter[str] = field(default_factory=Counter)  # drawn again, by reason


def count_faults(verdicts: Iterable[Verdict]) -> dict[str, Count]:
    """Count the faults by family, with ALL as the last key. A draw that yielded no fault counts for
    the family of its op."""
    details = [v.detail for v in verdicts if "trial" in v.detail]
    families = {f["family"] for d in details for f in (d, *d["again"]) if "family" in f}
    return {
        family: count_of([d for d in details if family in (ALL, d.get("family"))], details, family)
        for family in (*sorted(families), ALL)
    }


def count_of(
    injected: Sequence[Mapping[str, Any]], every: Sequence[Mapping[str, Any]], family: str
) -> Count:
    count = Count()
    for detail in injected:
        if "family" in detail:
            count.injected[detail["kind"]] += 1
            count.found[detail["kind"]] += detail["found"]
            count.located += detail["located"]
            count.smallest = min(count.smallest, detail["size"])
    drawn = (one for detail in every for one in detail["again"])
    count.again.update(one["why"] for one in drawn if family in (ALL, one["family"]))
    return count
