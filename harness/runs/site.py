"""A static site of a matrix: an index, a page for each engine and a page for each finding.

An interrupted run keeps the rows of finished engines. The next run with the same setup continues
with the remaining engines.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from lockstep.harness.check.check import BadInput, Plan
from lockstep.harness.parallel.row_files import read_rows
from lockstep.harness.records import EngineInfo, Verdict
from lockstep.harness.report.header import versions
from lockstep.harness.report.page.page import render_page
from lockstep.harness.report.page.write import write_text
from lockstep.harness.runs.matrix import (
    WELL,
    Cell,
    MatrixRow,
    columns,
    document_of,
    names_of,
    page_of_document,
    texts_of,
)

UNFINISHED, MATRIX, INDEX = "unfinished.jsonl", "matrix.json", "index.html"
FOLDERS = ("engines", "findings")
MAX_SLUG_CHARACTERS = 60


def open_site(folder: Path, plans: Mapping[str, Sequence[Plan]]) -> dict[str, MatrixRow]:
    """Return the rows that an interrupted run with the same setup has stored, by engine. Raises
    BadInput for a folder with other content."""
    if folder.exists() and any(folder.iterdir()) and not is_site(folder):
        what = f"{folder} is not empty, and lockstep matrix did not write its files"
        raise BadInput(f"{what}: name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    kept = read_rows(folder / UNFINISHED, lambda held: (held["setup"], row_from(held)))
    setups = {engine: setup_of(same) for engine, same in plans.items()}
    return {row.engine: row for setup, row in kept if setups.get(row.engine) == setup}


def ask_rest(
    folder: Path | None,
    plans: Mapping[str, Sequence[Plan]],
    ask: Callable[[Mapping[str, Sequence[Plan]]], Iterator[MatrixRow]],
) -> Iterator[MatrixRow]:
    """Yield the rows of an interrupted run, then the rows of the remaining engines. Store each new
    row. `folder` is None if no site is wanted."""
    known = open_site(folder, plans) if folder else {}
    yield from known.values()
    for row in ask({engine: each for engine, each in plans.items() if engine not in known}):
        if folder:
            keep_row(folder, row, plans[row.engine])
        yield row


def is_site(folder: Path) -> bool:
    return (folder / UNFINISHED).exists() or (folder / MATRIX).exists()


def setup_of(plans: Sequence[Plan]) -> str:
    """Return a digest of everything that determines an engine's row, except for the engine's own
    version."""
    asked = [
        (p.case, digest(p.model), p.oracle, p.settings.name, p.n_tokens, p.n_steps, p.seed)
        for p in plans
    ]
    return sha256(json.dumps([versions(), asked]).encode()).hexdigest()


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def keep_row(folder: Path, row: MatrixRow, plans: Sequence[Plan]) -> None:
    """Store the row of a finished engine, so that an interrupted run can continue."""
    info = row.info and {n: getattr(row.info, n) for n in ("engine", "version", "build")}
    held = {
        "engine": row.engine,
        "info": info,
        "error": row.error,
        "report": row.report,
        "code": row.code,
        "cells": {suite: cell_to_keep(cell) for suite, cell in row.cells.items()},
        "setup": setup_of(plans),
    }
    with (folder / UNFINISHED).open("a", encoding="utf-8") as text:
        text.write(f"{json.dumps(held)}\n")


def cell_to_keep(cell: Cell) -> dict[str, Any]:
    names = ("suite", "case", "status", "summary", "key", "repro")
    cases = {case: {n: getattr(v, n) for n in names} for case, v in cell.cases.items()}
    return {"cases": cases, "partly": sorted(cell.partly)}


def row_from(held: Mapping[str, Any]) -> MatrixRow:
    cells = {
        suite: Cell(
            cases={case: Verdict(**fields) for case, fields in cell["cases"].items()},
            partly=frozenset(cell["partly"]),
        )
        for suite, cell in held["cells"].items()
    }
    return MatrixRow(
        engine=held["engine"],
        info=held["info"] and EngineInfo(**held["info"]),
        error=held["error"],
        report=held["report"],
        code=held["code"],
        cells=cells,
    )


def write_site(
    folder: Path, rows: Sequence[MatrixRow], plans: Sequence[Plan], command: str
) -> Path:
    """Write all pages, and return the index. plans: the plans of any one engine."""
    for old in (page for name in FOLDERS for page in (folder / name).glob("*.html")):
        old.unlink()
    date = datetime.now(UTC).date().isoformat()
    pages = [f"engines/{slug(row.engine)}.html" for row in rows]
    document = document_of(rows, plans, command)
    common = {"oracle": plans[0].oracle, "date": date, "versions": versions()}
    found = findings_of(rows, pages)
    suites = columns(rows)
    for row, name, page in zip(rows, names_of(rows), pages, strict=True):
        own = [finding for finding in found if any(c["page"] == page for c in finding["cases"])]
        cells = dict(zip(suites, texts_of(row, suites), strict=True))
        text = render_page(
            "engine.html",
            title=f"Lockstep: {name}",
            row=row,
            name=name,
            cells=cells,
            findings=own,
            **common,
        )
        write_page_of_site(folder / page, text)
    for finding in found:
        title = f"Lockstep: {finding['suite']}"
        text = render_page("finding.html", title=title, finding=finding, **common)
        write_page_of_site(folder / finding["page"], text)
    links = [replace(row, report=str(folder / page)) for row, page in zip(rows, pages, strict=True)]
    write_text(folder / MATRIX, json.dumps(document, indent=1, allow_nan=False) + "\n")
    index = write_text(folder / INDEX, page_of_document(document, links, folder))
    (folder / UNFINISHED).unlink(missing_ok=True)
    return index


def write_page_of_site(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def findings_of(rows: Sequence[MatrixRow], pages: Sequence[str]) -> list[dict[str, Any]]:
    """Return the verdicts with a problem, grouped by suite, status and key over all engines and
    cases."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row, name, page in zip(rows, names_of(rows), pages, strict=True):
        for verdict in verdicts_of_row(row):
            key = verdict.suite, verdict.status, verdict.key
            words = slug(" ".join((verdict.suite, verdict.status, verdict.key)))
            finding = found.setdefault(
                key,
                {
                    "suite": verdict.suite,
                    "status": verdict.status,
                    "key": verdict.key,
                    "page": f"findings/{words}.html",
                    "cases": [],
                },
            )
            case = {"engine": name, "page": page, "case": verdict.case}
            finding["cases"].append(case | {"summary": verdict.summary, "repro": verdict.repro})
    return list(found.values())


def verdicts_of_row(row: MatrixRow) -> Iterator[Verdict]:
    for cell in row.cells.values():
        for verdict in cell.cases.values():
            if verdict.status not in (*WELL, "not-applicable"):
                yield verdict


def slug(text: str) -> str:
    """Return a file name for any text: its letters and digits, and a digest that makes it
    unique."""
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:MAX_SLUG_CHARACTERS]
    return f"{words}-{sha256(text.encode()).hexdigest()[:8]}"
