"""The page of a matrix: engines by suites, with a link to each engine's own page."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lockstep.harness.report.page.page import NAME, render_page
from lockstep.harness.report.page.verdicts import LOUD, count_words

BEST_LAST = (*LOUD, "excused", "agreed", "not-applicable")


def page_of_matrix(
    document: Mapping[str, Any],
    names: Sequence[str],
    texts: Sequence[Mapping[str, str]],
    folder: Path,
) -> str:
    """Draw the page of a matrix. `document` is the content of matrix.json. `names` are the engines'
    names. `texts` holds the text of each engine's cells, by suite. `folder` is the folder in which
    the page will be written."""
    suites = list(dict.fromkeys(suite for cells in texts for suite in cells))
    rows = [
        {
            **row,
            "name": name,
            "link": link_to(row["report"], folder),
            "cells": [cell_of(row["suites"].get(suite, {}), cells, suite) for suite in suites],
            "told": told_of(row["suites"]),
        }
        for row, name, cells in zip(document["engines"], names, texts, strict=True)
    ]
    return render_page(
        "matrix.html",
        title=f"Lockstep: engines against {document['oracle']}",
        sentence=sentence_of(document["engines"], document["oracle"]),
        document=document,
        suites=suites,
        rows=rows,
    )


def sentence_of(engines: Sequence[Mapping[str, Any]], oracle: str) -> str:
    """Return a sentence that says how many engines conform."""
    codes = [row["exit_code"] for row in engines]
    conform = codes.count(0)
    text = (
        f"{conform} of {count_words(len(codes), 'engine')} agree with {oracle} in every comparison"
    )
    diverged, rest = codes.count(1), len(codes) - conform - codes.count(1)
    text += f"; {diverged} {'diverges' if diverged == 1 else 'diverge'}" if diverged else ""
    return text + (f"; {rest} incomplete." if rest else ".")


def cell_of(
    cases: Mapping[str, Mapping[str, Any]], texts: Mapping[str, str], suite: str
) -> dict[str, str]:
    """Return the text of a cell, and the worst status of its verdicts."""
    statuses = {case["status"] for case in cases.values()}
    worst = next((status for status in BEST_LAST if status in statuses), "not-applicable")
    return {"text": texts.get(suite, "-"), "status": worst}


def told_of(suites: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the verdicts that need attention."""
    return [
        {"suite": suite, "case": case, **verdict}
        for suite, cases in suites.items()
        for case, verdict in cases.items()
        if verdict["status"] not in ("agreed", "not-applicable")
    ]


def link_to(report: str, folder: Path) -> str:
    """Return a relative link, so that a folder of reports can be moved; "" without a report.
    `report` is the path of a page, or of the report.jsonl in the same folder."""
    if not report:
        return ""
    page = Path(report) if report.endswith(".html") else Path(report).with_name(NAME)
    relative = os.path.relpath(page, folder)
    return quote(f"./{relative}")
