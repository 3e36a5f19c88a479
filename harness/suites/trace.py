"""Judgement of the subject's ops. Each op must be right at every tensor that the subject shows."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import starmap
from typing import Any

from lockstep.harness.context.suite import Context
from lockstep.harness.dumps.node_maps import fits_none
from lockstep.harness.judging.findings import Findings
from lockstep.harness.judging.judge import SiteFinding
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
        """Judge each op without the accumulation of errors over ops. Measuring this accumulation
        costs a run, and helps only if something is wrong."""
        return judge_own_run(context, shown, whole=False)[0]

    def locate(self, context: Context) -> Findings:
        return locate(context)

    def verdicts(self, context: Context, found: Findings) -> Iterator[Verdict]:
        if found.other_graph:
            text = f"llama.cpp builds a different graph from {context.subject.name}'s file"
            text += f": {found.other_graph}"
            key = ("trace", "other graph", found.other_graph)
            yield context.verdict("trace", "diverged", text, {"rest": found.rest}, key=key)
        yield from left_out(context, "trace", found)
        yield from unused_patterns(context)
        fine = [f for f in found.all if f.mismatch is None and f.compared]
        if not fine:
            return
        text = f"{found.rest}; of these {closest([f for f in fine if f.measured])}"
        designs: dict[str, list[SiteFinding]] = {}
        for each in fine:
            if each.design is not None:
                designs.setdefault(each.design.words, []).append(each)
        detail = {"sites": len(found.all), "agreed": len(fine), "by_node": by_node(found)}
        if designs:
            detail["designs"] = {name: len(each) for name, each in designs.items()}
            text = "; ".join([text, *starmap(in_design, designs.items())])
        yield context.verdict("trace", "agreed", text, detail)


def in_design(name: str, findings: Sequence[SiteFinding]) -> str:
    """Return a note on ops that agree with a known design other than llama.cpp's."""
    sees = max(finding.sees for finding in findings)
    return f"{len(findings)} ops have {name}; a scale error of {sees:.1e} in one would be found"


def closest(findings: Sequence[SiteFinding]) -> str:
    """Describe the finding that is closest to its limit. findings: those with a measured limit."""
    if not findings:
        return "all are within the limit of their last op alone"
    tightest = max(findings, key=share)
    nearest = f"{site_name(tightest.site)} is nearest, at {share(tightest):.0%} of its limit"
    return f"none exceeds its limit; {nearest}"


def unused_patterns(context: Context) -> Iterator[Verdict]:
    """Yield a verdict on the tensors whose names no pattern of the map matches. No other verdict
    reveals a misspelt pattern."""
    names = context.subject_info.unmapped
    if names:
        text = f"{fits_none(names)}: {len(names)} tensors not compared"
        yield context.verdict("trace", "not-applicable", text, {"names": list(names)})


def by_node(found: Findings) -> dict[str, Any]:
    """Return every judged op, including wrong ones, in columns."""
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


def share(finding: SiteFinding) -> float:
    return finding.err_oracle / finding.allowed if finding.allowed else 0.0
