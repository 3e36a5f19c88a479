"""Is every op of the subject right, at every tensor that it shows?"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.suite import Context, Suite
from lockstep.harness.judging.findings import Findings
from lockstep.harness.locate.locate import locate
from lockstep.harness.records import Site, Status, Verdict
from lockstep.harness.report.nodes import NodeRow, node_columns
from lockstep.harness.report.text import explain_finding, site_name


class TraceSuite(Suite, name="trace"):
    order = 60

    def inapplicable(self, facts: ModelFacts) -> str:
        return facts.no_run

    def run(self, context: Context) -> Iterator[Verdict]:
        found = locate(context)
        for finding in found.guilty:
            yield context.verdict(
                "trace",
                "diverged",
                explain_finding(finding),
                detail_of(found, finding),
                key=("trace", finding.at_fault, finding.op, finding.site.name),
            )
        if found.other_graph:
            text = f"llama.cpp makes another graph of {context.subject.name}'s file"
            text += f": {found.other_graph}"
            key = ("trace", "other graph", found.other_graph)
            yield context.verdict("trace", "diverged", text, {"rest": found.rest}, key=key)
        yield from left_out(context, "trace", found)
        fine = [f for f in found.all if f.mismatch is None and f.compared]
        if not fine:
            return
        tightest = max(fine, key=lambda f: f.err_oracle / f.allowed if f.allowed else 0.0)
        yield context.verdict(
            "trace",
            "agreed",
            f"{found.rest}; closest to its limit: {site_name(tightest.site)} at "
            f"{share(tightest):.0%}",
            {"sites": len(found.all), "agreed": len(fine), "by_node": by_node(found)},
        )


def left_out(context: Context, suite: str, found: Findings) -> Iterator[Verdict]:
    """What an engine shows not at all, or on inputs that the other does not have: nobody is
    accused of it."""
    who, oracle = context.subject.name, context.oracle.name
    empty = [f.site for f in found.all if f.mismatch is None and not f.compared]
    reasons: tuple[tuple[Status, Sequence[Site], str], ...] = (
        ("not-compared", found.not_shown, f"{oracle} does not show these, or what they read:"),
        ("not-compared", empty, "every element is NaN on both sides, or beyond float32's range:"),
        *(("not-compared", sites, f"{why}:") for why, sites in found.unknown.items()),
        *(("not-applicable", sites, f"{why}:") for why, sites in found.skipped.items()),
        ("not-applicable", found.hidden, f"{who} does not show"),
        ("not-applicable", found.not_given, f"nothing can be put in before {who}'s"),
    )
    for status, sites, why in reasons:
        if sites:
            names = ", ".join(dict.fromkeys(site.name for site in sites))
            text = f"{why} {names}: {len(sites)} ops not compared"
            yield context.verdict(suite, status, text, {"sites": list(map(str, sites))})


def by_node(found: Findings) -> dict[str, Any]:
    """Every op that was judged, those that are wrong as well."""
    order: Counter[int] = Counter()
    rows = []
    for f in found.all:
        rows.append(
            NodeRow(
                step=f.site.step,
                order=order[f.site.step],
                layer=f.layer,
                name=f.site.name,
                op=f.op,
                share=f.worst[0],
                error=f.err_local,
                worst=f.worst[1],
                reason=f.reason,
                wrong=f.mismatch is not None,
                err_in=found.err_in(f) if f.site in found.free else None,
                err_out=found.free.get(f.site),
            )
        )
        order[f.site.step] += 1
    return node_columns(rows)


def share(finding: Any) -> float:
    return finding.err_oracle / finding.allowed if finding.allowed else 0.0


def detail_of(found: Findings, finding: Any) -> dict[str, Any]:
    """Everything that a reader needs to act, JSON-like."""
    m = finding.mismatch
    return {
        "step": finding.site.step,
        "layer": finding.layer,
        "site": finding.site.name,
        "op": finding.op,
        "weight": finding.weight,
        "parameters": finding.parameters,
        "at_fault": finding.at_fault,
        "err_in": found.err_in(finding),
        "err_out": found.err_out(finding),
        "err_local": finding.err_local,
        "gain": found.gain(finding),
        "index": list(m.index),
        "expected": m.expected,
        "actual": m.actual,
        "allowed": m.allowed,
        "mismatched": m.mismatched,
        "total": m.total,
        "kind": m.kind,
        "positions": {
            "axis": "last",
            "indices": list(finding.outputs[:16]),
            "count": len(finding.outputs),
        },
        "reason": finding.reason,
        "rest": found.rest,
        "basis": found.basis,
    }
