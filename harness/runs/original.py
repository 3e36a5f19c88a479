"""`lockstep original`: a checkpoint and a GGUF file compared, with a report."""

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.harness.originals.compare import OriginalComparison, compare_original
from lockstep.harness.originals.findings import (
    DifferenceKind,
    NotCompared,
    OriginalDifference,
    PartResult,
)
from lockstep.harness.records import Verdict
from lockstep.harness.report.header import header, model_row
from lockstep.harness.report.jsonl import ReportWriter
from lockstep.harness.runs.run import run_folder

SUITE = "original"
WORDS = {
    DifferenceKind.holds: "holds {holds}",
    DifferenceKind.zeros: "holds zeros",
    DifferenceKind.order: "has its rows in the order of {heads} heads, put there {turns} times",
    DifferenceKind.transposed: "is transposed",
    DifferenceKind.offset: "is the original with {added:g} added",
    DifferenceKind.truncated: "is cut to its type, not rounded",
    DifferenceKind.narrowed: "was rounded to {by_way_of} on the way",
    DifferenceKind.shifted: "is shifted by {by} rows",
    DifferenceKind.halves: "has its two halves the other way round",
    DifferenceKind.scaled: "is {factor:.4f} times the original",
    DifferenceKind.blocks: "has {blocks} blocks that differ from the usual quantiser's",
}


@dataclass(frozen=True, kw_only=True)
class OriginalRun:
    """The result of the command, and where its report is."""

    comparison: OriginalComparison
    folder: Path


def run_original(
    checkpoint: Path,
    model: Path,
    reports: Path,
    command: Sequence[str],
    progress: Callable[[str], object],
) -> OriginalRun:
    """Compare, and write a report into a new folder. Raises EngineError and OSError."""
    started = time.monotonic()
    found = compare_original(checkpoint, model, progress)
    folder = run_folder(reports, SUITE)
    row = model_row(model.name, model, "subject")
    writer = ReportWriter(folder, header(shlex.join(command), 0, [row], []))
    repro = shlex.join(["lockstep", "original", str(checkpoint), str(model)])
    for part in found.parts:
        for verdict in verdicts_of(part, model.name, repro):
            writer.verdict(verdict)
    writer.footer(found.exit_code, time.monotonic() - started)
    return OriginalRun(comparison=found, folder=folder)


def verdicts_of(part: PartResult, case: str, repro: str) -> list[Verdict]:
    """Return a verdict for each difference and each place that was not compared."""
    same: dict[str, Any] = {"suite": SUITE, "case": case, "repro": repro}
    found = [
        Verdict(
            status="diverged",
            summary=describe_difference(each),
            detail=asdict(each),
            key=f"{each.part}/{each.kind}",
            **same,
        )
        for each in part.differences
    ]
    for skip in part.skipped:
        text = f"{skip.place}: {skip.reason}"
        found.append(Verdict(status="not-compared", summary=text, detail=asdict(skip), **same))
    if not part.differences and part.compared:
        text = f"{part.part}: {part.compared} agree"
        found.append(Verdict(status="agreed", summary=text, detail={"part": part.part}, **same))
    return found


def describe_difference(found: OriginalDifference) -> str:
    """Return a line for people."""
    place, detail = found.place, found.detail
    if "what" in detail:
        place += f" ({detail['what']})"
    if found.kind is DifferenceKind.missing:
        return f"{place} is missing; the original has {found.expected!r:.80}"
    if found.kind is DifferenceKind.unexpected:
        return f"{place} has no original"
    if found.kind is DifferenceKind.experts:
        return f"{place}: expert {detail['expert']} {describe_expert(detail)}"
    words = WORDS.get(found.kind, "is wrong" if "rows" in detail else "differs")
    text = f"{place} {words.format(**detail)}"
    if "rows" in detail and "of_rows" in detail:
        text += f": {detail['rows']} of {detail['of_rows']} rows, the first {detail['row']}"
    return f"{text}: expected {found.expected!r:.60}, got {found.got!r:.60}"


def describe_expert(detail: dict[str, Any]) -> str:
    if "holds_expert" in detail:
        return f"holds expert {detail['holds_expert']}"
    return "is transposed"


def describe_run(found: OriginalComparison) -> dict[str, Any]:
    """Return the result as plain values."""
    return {
        "architecture": found.architecture,
        "exit_code": found.exit_code,
        "parts": [
            {
                "part": part.part,
                "compared": part.compared,
                "differences": [asdict(each) for each in part.differences],
                "not_compared": [asdict(each) for each in part.skipped],
            }
            for part in found.parts
        ],
    }


def describe_skips(skipped: Sequence[NotCompared]) -> list[str]:
    """Return a line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for each in skipped:
        by_reason.setdefault(each.reason, []).append(each.place)
    lines = []
    for reason, places in by_reason.items():
        more = f" and {len(places) - 3} more" if len(places) > 3 else ""
        lines.append(f"{reason}: {', '.join(places[:3])}{more}")
    return lines
