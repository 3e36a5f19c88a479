"""Nodes of a graph, with errors as shares of limits. They are stored in columns, which takes tens
of bytes for each node."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

DIGITS = 3  # significant digits of shares and errors, which are only for display


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRow:
    """One node, or one segment of several nodes, in execution order."""

    step: int
    order: int  # order within its step
    layer: int | None  # None: outside all layers
    name: str  # without the number of the layer
    op: str
    share: float  # worst error as a share of its limit
    error: float  # absolute error on the inputs that were judged
    # index of the element with that share; empty: all elements are exact
    worst: tuple[int, ...] = ()
    reason: str = ""  # the reason of the limit
    wrong: bool = False
    # errors of the subject's own run relative to the largest value; None: not known
    err_in: float | None = None
    err_out: float | None = None


def node_columns(rows: Sequence[NodeRow]) -> dict[str, Any]:
    """Return `detail.nodes` of a verdict. Each text is stored once in a list, and each column has a
    number for each row.

    If a value is None in all rows, its column is omitted.
    """
    names, ops, reasons = (unique(getattr(r, f) for r in rows) for f in ("name", "op", "reason"))
    columns: dict[str, Any] = {
        "names": [*names],
        "ops": [*ops],
        "reasons": [*reasons],
        "step": [r.step for r in rows],
        "order": [r.order for r in rows],
        "layer": [r.layer for r in rows],
        "name": [names[r.name] for r in rows],
        "op": [ops[r.op] for r in rows],
        "reason": [reasons[r.reason] for r in rows],
        "share": [short(r.share) for r in rows],
        "error": [short(r.error) for r in rows],
        "worst": ["/".join(map(str, r.worst)) for r in rows],
        "wrong": [i for i, r in enumerate(rows) if r.wrong],
    }
    for name in ("err_in", "err_out"):
        values = [getattr(r, name) for r in rows]
        if any(value is not None for value in values):
            columns[name] = [None if v is None else short(v) for v in values]
    return columns


def unique(texts: Iterable[str]) -> dict[str, int]:
    """Return each distinct text with its index."""
    return {text: i for i, text in enumerate(dict.fromkeys(texts))}


def short(value: float) -> float:
    """Round to DIGITS digits. A whole number becomes an int."""
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
