"""Shared parts of the suites that judge tensors: verdicts on wrong or missing tensors.

The tensors that an engine shows of a large model are judged in a fork, while engines answer other
questions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.suite import Context, NoAnswer, Suite
from lockstep.harness.graph.program import EMBEDDINGS, LOGITS
from lockstep.harness.judging.findings import Findings
from lockstep.harness.locate.segments import shows_tensors
from lockstep.harness.processes.ahead import LATER, Ahead, give_back, may_fork
from lockstep.harness.records import Site, Status, Verdict
from lockstep.harness.report.text import explain_finding


@dataclass(frozen=True, kw_only=True)
class NotAnswered:
    """The result if the engine crashed or hung. The question is not repeated."""

    error: NoAnswer

    def close(self) -> None:
        pass


class TensorSuite(Suite):
    def ask(self, context: Context) -> Any:
        """Return an engine's tensors in the form that `judge` takes. Raises NoAnswer."""
        raise NotImplementedError

    def judge(self, context: Context, shown: Any) -> Findings:
        """Judge the tensors without asking an engine."""
        raise NotImplementedError

    def locate(self, context: Context) -> Findings:
        """Ask and judge. Ask further questions if they are needed to say what is wrong. Raises
        NoAnswer."""
        raise NotImplementedError

    def verdicts(self, context: Context, found: Findings) -> Iterator[Verdict]:
        """Yield the verdicts on the right ops, and on ops that were not compared."""
        raise NotImplementedError

    def inapplicable(self, facts: ModelFacts) -> str:
        return facts.no_run

    def begin(self, context: Context) -> None:
        along_nodes = context.subject_info.computes_nodes or not shows_tensors(context)
        if not may_fork() or along_nodes or context.facts.is_small:
            return
        try:
            work = partial(self.if_all_agrees, context, self.ask(context))
        except NoAnswer as error:
            context.begun[self.name] = NotAnswered(error=error)
        else:
            # the values of a large model are some hundred MB, which nothing needs meanwhile
            give_back()  # before the fork, which would hold this memory too
            context.begun[self.name] = Ahead(work, behind=LATER, again=lambda: None)
            del work
            give_back()

    def if_all_agrees(self, context: Context, shown: Any) -> list[Any] | None:
        """Return the verdicts; None if something is wrong.

        If something is wrong, the caller asks further questions, which a fork cannot do. The result
        is also None if the fork died.
        """
        found = self.judge(context, shown)
        if found.guilty or found.other_graph:
            return None
        return [[v.status, v.summary, v.detail] for v in self.verdicts(context, found)]

    def run(self, context: Context) -> Iterator[Verdict]:
        begun = context.begun.pop(self.name, None)
        if isinstance(begun, NotAnswered):
            raise begun.error
        said = begun.result() if isinstance(begun, Ahead) else None
        if said is not None:
            yield from (context.verdict(self.name, *verdict) for verdict in said)
            return
        found = self.locate(context)
        for finding in found.guilty:
            yield context.verdict(
                self.name,
                "diverged",
                explain_finding(finding),
                detail_of(found, finding),
                key=(self.name, finding.at_fault, finding.op, finding.site.name),
            )
        yield from self.verdicts(context, found)


def left_out(context: Context, suite: str, found: Findings) -> Iterator[Verdict]:
    """Yield verdicts on ops that cannot be compared, because one engine does not show the tensor or
    its inputs. They accuse neither engine."""
    who, oracle = context.subject.name, context.oracle.name
    empty = [f.site for f in found.all if f.mismatch is None and not f.compared]
    # an engine whose tensors all have unknown names would take them for compared
    known = suite != "trace" or any(f.site.name not in (LOGITS, EMBEDDINGS) for f in found.all)
    unknown_name: Status = "not-applicable" if known else "not-compared"
    reasons: tuple[tuple[Status, Sequence[Site], str], ...] = (
        ("not-compared", found.not_shown, f"{oracle} does not show these, or their inputs:"),
        ("not-compared", empty, "every element is NaN on both sides, or beyond float32's range:"),
        *(("not-compared", sites, f"{why}:") for why, sites in found.unknown.items()),
        *((unknown_name, sites, f"{why}:") for why, sites in found.skipped.items()),
        ("not-applicable", found.hidden, f"{who} does not show"),
        ("not-applicable", found.not_given, f"Lockstep cannot replace the inputs of {who}'s"),
    )
    for status, sites, why in reasons:
        if sites:
            names = ", ".join(dict.fromkeys(site.name for site in sites))
            text = f"{why} {names}: {len(sites)} ops not compared"
            yield context.verdict(suite, status, text, {"sites": list(map(str, sites))})


def detail_of(found: Findings, finding: Any) -> dict[str, Any]:
    """Return a JSON-like detail with everything that a reader needs in order to act."""
    m = finding.mismatch
    return {
        "step": finding.site.step,
        "layer": finding.layer,
        "site": finding.site.name,
        "node": str(finding.site),  # the name alone need not contain the layer
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
