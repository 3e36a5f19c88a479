"""Converts the judge's findings on one model to verdicts: one for each kind of op that was
compared, and one for each kind that was not compared."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from lockstep.harness.records import Captured, Outcome, Status
from lockstep.harness.report.nodes import node_columns
from lockstep.harness.shadow.judge import NodeFinding, ShadowJudge, Tally
from lockstep.harness.shadow.notes import note_of

PLACES = 20  # places of nodes that are named; all are counted
SUITE = "shadow"

Made = TypeVar("Made")
MakeVerdict = Callable[[Status, str, dict[str, Any], tuple[str, ...]], Made]
Said = tuple[Status, str, dict[str, Any], tuple[str, ...]]  # status, summary, detail, key


def verdicts_of(judge: ShadowJudge, make: MakeVerdict[Made]) -> Iterator[Made]:
    for op, tally in judge.by_op():
        found = [finding for finding in judge.findings if finding.op == op]
        detail = {**counts(tally), "op": op, "layers": layers(judge, op)}
        detail["by_node"] = node_columns([row for row in judge.rows if row.op == op])
        if found:
            key = (SUITE, "value", op, found[0].type)
            yield make("diverged", sentence(found), {**detail, **places(found)}, key)
        elif tally.compared and not tally.elements:
            yield make("excused", f"{op}: {tally.compared} nodes have no elements", detail, ())
        elif tally.compared:
            text = f"{op}: {tally.compared} nodes agree, at most {tally.worst:.0%} of the bound"
            if note := note_of(op, tally.free, tally.reach, tally.worst):
                detail["note"] = note
            yield make("agreed", text, detail, ())
        for reason, n in tally.not_compared.items():
            yield make("not-compared", f"{op}: {n} nodes not compared: {reason}", detail, ())


def counts(tally: Tally) -> dict[str, Any]:
    return {
        "nodes": tally.nodes,
        "compared": tally.compared,
        "elements": tally.elements,
        "nan": tally.nan,
        "unbounded": tally.unbounded,
        "exact": tally.exact,
        "free": tally.free,
        "reach": tally.reach,
        "worst_share": tally.worst,
        "worst_error": tally.worst_error,
        "violations": tally.violations,
        "not_compared": dict(tally.not_compared),
    }


def layers(judge: ShadowJudge, op: str) -> dict[str, Any]:
    """Return the number of nodes and the worst share in each layer. "-" stands for nodes outside
    the layers."""
    return {
        "-" if layer is None else str(layer): [tally.nodes, tally.worst]
        for (name, layer), tally in sorted(judge.tallies.items(), key=str)
        if name == op
    }


def sentence(found: list[NodeFinding]) -> str:
    first, m = found[0], found[0].mismatch
    more = f", and {len(found) - 1} more nodes" if len(found) > 1 else ""
    if m.kind != "value":
        return f"{first.op} at {first.place}: {m.detail or m.kind}{more}"
    return (
        f"{first.op} at {first.place}: {m.mismatched} of {m.total} elements off, worst "
        f"{list(m.index)} is {m.actual:.9g}, expected {m.expected:.9g} (allowed {m.allowed:.2g})"
        f"{more}"
    )


def places(found: list[NodeFinding]) -> dict[str, Any]:
    first, m = found[0], found[0].mismatch
    return {
        "places": [f.place for f in found[:PLACES]],
        "sources": list(first.sources),
        "index": list(m.index),
        "expected": m.expected,
        "actual": m.actual,
        "allowed": m.allowed,
        "mismatched": m.mismatched,
        "total": m.total,
        "reason": first.reason,
    }


def all_seen(judge: ShadowJudge, captured: Outcome) -> str:
    """Return a message if the number of nodes that arrived is wrong; "" if it is right."""
    value = getattr(captured, "value", None)
    seen = sum(tally.nodes for tally in judge.tallies.values())
    if isinstance(value, Captured) and value.nodes != seen:
        return f"the engine showed {value.nodes} nodes, but {seen} arrived"
    return ""
