"""Drawings of a verdict's detail: a chart, two columns of ids, bytes, a schedule, text.

A detail comes from a file that may be damaged or forged. If it does not have the right form for a
drawing, the page names it and shows everything else.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.harness.report.page.alignment import alignment_of, runs_of_ids
from lockstep.harness.report.page.chart import chart_of
from lockstep.harness.report.page.hexdump import blocks_of, dump_of
from lockstep.harness.report.page.schedules import schedule_of

Detail = Mapping[str, Any]
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True, kw_only=True)
class Figure:
    kind: str  # name of a macro in figures.html
    data: Any


def figures_of(row: Mapping[str, Any]) -> list[Figure]:
    found = []
    for kind, draw in DRAWN.items():
        try:
            data = draw(row["detail"])
        except MALFORMED:
            text = f"This page cannot draw the {kind} of this verdict; "
            found.append(Figure(kind="remark", data=f"{text}report.jsonl has it."))
            continue
        if data is not None:
            found.append(Figure(kind=kind, data=data))
    return found


def log_of(d: Detail) -> Any:
    lines = d.get("log") or d.get("traceback")
    if not lines:
        return None
    return "\n".join(map(str, lines)) if isinstance(lines, list) else str(lines)


def answers_of(d: Detail) -> Any:
    """Return the answer of each way to read the file; None if the detail has no such answers."""
    answers = d.get("answers")
    return [*answers.items()] if isinstance(answers, Mapping) and answers else None


def differences_of(d: Detail) -> Any:
    rows = d.get("differences")
    if not isinstance(rows, list):
        return None
    return {"texts": [row["text"] for row in rows[1:21]], "total": int(d["total"])}


def bisection_of(d: Detail) -> Any:
    """Return the layers in graph order, each with its output error and its wrong ops; None if the
    detail has no bisection."""
    given = d.get("bisection")
    if given is None:
        return None
    layers = [
        {
            "name": "outside" if row["layer"] is None else f"layer {row['layer']}",
            "last": row["last"],
            "error": row["error"],
            "guilty": list(row["guilty"]),
        }
        for row in given["layers"]
    ]
    return {"layers": layers, "proof": given["proof"]}


DRAWN: dict[str, Callable[[Detail], Any]] = {
    "chart": chart_of,
    "alignment": alignment_of,
    "ids": runs_of_ids,
    "differences": differences_of,
    "blocks": blocks_of,
    "hexdump": dump_of,
    "schedule": schedule_of,
    "bisection": bisection_of,
    "answers": answers_of,
    "log": log_of,
}


MOST_CHARTS = 100  # verdicts that agree; if there are more, those closest to their limit are drawn


def agreeing_with_charts(verdicts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the agreeing findings that have charts. Charts of diverging findings are drawn
    elsewhere."""
    fine = (row for row in verdicts if row["status"] in ("agreed", "excused"))
    return [row for row in fine if "by_position" in row["detail"]]


def charts_of(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], Figure]]:
    """Yield the charts in the order of the run."""
    if len(rows) > MOST_CHARTS:
        nearest = sorted(range(len(rows)), key=lambda i: -share_of_limit(rows[i]["detail"]))
        rows = [rows[i] for i in sorted(nearest[:MOST_CHARTS])]
    for row in rows:
        for figure in figures_of(row):
            if figure.kind in ("chart", "remark"):
                yield row, figure


def share_of_limit(d: Detail) -> float:
    try:
        return float(d["worst_relative_to_largest_logit"]) / float(d["allowed_relative"])
    except MALFORMED:
        return 0.0
