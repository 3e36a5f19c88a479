"""Whole runs in which llama.cpp is known to be wrong. They are listed in the table [[run]] of the
known divergences."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lockstep.harness.known import entries
from lockstep.harness.records import Verdict

ORACLE = "llama.cpp"


def excused_if_known(verdict: Verdict, architecture: str, oracle: str) -> Verdict:
    """Return the verdict, excused if it blames only llama.cpp, for a difference that is known in
    this version."""
    detail = verdict.detail
    if verdict.status != "diverged" or oracle != ORACLE or not blames_it_alone(detail):
        return verdict
    for entry in entries("run"):
        asked = (architecture, verdict.suite, detail.get("step"))
        if (entry["architecture"], entry["suite"], entry.get("step")) != asked:
            continue
        if re.search(entry.get("asked", ""), detail.get("asked", "")):
            known = f"{entry['id']}: {entry['sentence']}"
            text = f"{verdict.summary} (known: {known})"
            return replace(
                verdict, status="excused", summary=text, detail={**detail, "known": known}
            )
    return verdict


def blames_it_alone(detail: Mapping[str, Any]) -> bool:
    """Return True if the verdict blames only llama.cpp. Return True as well if the verdict blames
    both engines and both chose the same wrong token."""
    both_chose = "expected" in detail and detail["expected"] == detail.get("actual")
    return detail.get("at_fault") == "oracle" or (
        detail.get("at_fault") == "both" and "step" in detail and both_chose
    )
