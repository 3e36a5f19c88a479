"""Is every op of the subject right, at every tensor that it shows?"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from lockstep.harness.context.suite import Context
from lockstep.harness.judging.findings import Findings
from lockstep.harness.locate.locate import locate
from lockstep.harness.locate.segments import OwnRun, judge_own_run, own_run
from lockstep.harness.records import Verdict
from lockstep.harness.report.nodes import NodeRow, node_columns
from lockstep.harness.report.text import site_name
from lockstep.harness.suites.parts.tensor_suite import TensorSuite, left_out


class TraceSuite(TensorSuite, name="trace"):
    order = 60

    def ask(self, context: Context) -> OwnRun:
        return own_run(context)

    def judge(self, context: Context, shown: OwnRun) -> Findings:
        return judge_own_run(context, shown)[0]

    def locate(self, context: Context) -> Findings:
        return locate(context)

    def verdicts(self, context: Context, found: Findings) -> Iterator[Verdict]:
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
