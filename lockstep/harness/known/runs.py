"""Whole runs in which llama.cpp is known to be wrong: [[run]] of the known divergences."""

from dataclasses import replace

from lockstep.harness.known import entries
from lockstep.harness.records import Verdict

ORACLE = "llama.cpp"


def excused_if_known(verdict: Verdict, architecture: str, oracle: str) -> Verdict:
    """The same verdict, unless it blames this version of llama.cpp alone for what is known."""
    detail = verdict.detail
    if verdict.status != "diverged" or oracle != ORACLE or detail.get("at_fault") != "oracle":
        return verdict
    asked = (architecture, verdict.suite, detail.get("step"))
    for entry in entries("run"):
        if (entry["architecture"], entry["suite"], entry["step"]) == asked:
            known = f"{entry['id']}: {entry['sentence']}"
            text = f"{verdict.summary} (known: {known})"
            return replace(
                verdict, status="excused", summary=text, detail={**detail, "known": known}
            )
    return verdict
