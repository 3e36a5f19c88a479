"""Writes report.html into the folder of report.jsonl."""

import json
from collections.abc import Sequence
from pathlib import Path

from lockstep.harness.redaction import redact
from lockstep.harness.report.page.page import NAME, page_of, undrawn
from lockstep.harness.report.page.verdicts import Row, RowsOfRun


def write_page(report: Path, rows: Sequence[Row]) -> Path:
    """Write the page of these rows, and return its path. The run may be unfinished."""
    return write_text(report.with_name(NAME), page_of(RowsOfRun.of(rows)))


def write_page_of_run(report: Path) -> Path:
    """Write the page of a report that was just written. If drawing fails, the page shows the error;
    the verdicts and the exit code stay the same."""
    rows = [json.loads(line) for line in report.read_bytes().splitlines()]
    try:
        return write_page(report, rows)
    except Exception as error:
        return write_text(report.with_name(NAME), undrawn(error))


def write_text(path: Path, text: str) -> Path:
    part = path.with_name(f"{path.name}.part")
    part.write_text(redact(text), encoding="utf-8")
    part.replace(path)  # so that an incomplete page is never visible
    return path
