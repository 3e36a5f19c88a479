"""Vectors of single operations: inputs, the result in float64, and a bound for every element."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lockstep.engine.ops.ggml.base import has_meaning
from lockstep.golden.ops.form import Case, node_of
from lockstep.golden.ops.judge import Array, JudgedCase, judge
from lockstep.golden.ops.vectors import RESULT, case_of, cases_of, write_case
from lockstep.golden.store import BrokenGolden, Tensors
from lockstep.golden.suites.base import AskedEngine, Golden, Source, Vectors, Verdicts
from lockstep.harness.records import Mismatch, Verdict

COMPARE = (
    "no element of an output further than `allowed` from the truth; NaN and infinity must be the "
    "same; of several ways one must fit all elements of the output"
)

HELD = {  # keys: True for ops of ggml; values: what the truth was compared with when it was written
    True: "llama.cpp computed every case, and was within the bounds but for what is a finding",
    False: "a second writing of the operation in float32, and the mistakes that it must not let "
    "pass: tests/golden/test_fused_ops.py",
}


class GoldenOps(Golden, name="ops"):
    def make(self, source: Source, what: str) -> Vectors:
        """Make the cases of an operation. Raises BrokenGolden if the oracle's own result is out of
        bounds."""
        source.progress(f"{what}: cases of an operation")
        rows, tensors = [], Tensors()
        for case in cases_of(what, source.seed):
            row, more = write_case(what, case)
            rows.append(row)
            tensors |= more
            check_oracle(what, case, row, more, source.ask)
        ggml = has_meaning(what)
        body = {"op": what, "ggml": ggml, "held": HELD[ggml], "compare": COMPARE, "cases": rows}
        return Vectors(document={**source.head("ops"), **body}, tensors=tensors)

    def inconsistencies(self, vectors: Vectors) -> Iterator[str]:
        rows, tensors = vectors.document["cases"], vectors.tensors
        if len({row["id"] for row in rows}) != len(rows):
            yield "two cases have the same id"
        named = dict(pair for row in rows for pair in named_tensors(row))
        for where in sorted(named.keys() ^ tensors.keys()):
            yield f"{where!r} is not both in the document and among the tensors"
        for where in named.keys() & tensors.keys():
            if list(tensors[where].shape) != named[where]:
                shape = tensors[where].shape
                yield f"the tensor {where!r} has shape {shape}, the document says {named[where]}"
            if where.endswith(".allowed") and not is_bound(tensors[where]):
                yield f"the bound {where!r} is negative or not finite"

    def cases(self, vectors: Vectors) -> Mapping[str, Any]:
        document = vectors.document
        found = {key: document[key] for key in ("provenance", "op", "held", "compare")}
        return {**found, **{row["id"]: row for row in document["cases"]}, **vectors.tensors}

    def replay(self, vectors: Vectors, ask: AskedEngine, verdict: Verdicts) -> Iterator[Verdict]:
        op = vectors.document["op"]
        held: list[JudgedCase] = []
        for row in vectors.document["cases"]:
            case = case_of(row, vectors.tensors)
            answers = ask_case(op, case, ask, ggml=vectors.document["ggml"])
            held += judge(row, vectors.tensors, answers)
        yield verdict_of(vectors.document, held, verdict, engine=ask.engine)


def named_tensors(row: Mapping[str, Any]) -> Iterator[tuple[str, list[int]]]:
    """Yield the names and shapes of the document's tensors."""
    for name, held in row["inputs"].items():
        yield f"{row['id']}/{name}", held["shape"]
    for name, output in row["outputs"].items():
        for way, found in output["ways"].items():
            where = f"{row['id']}/{name}.{way}"
            yield where, output["shape"]
            if found["allowed"] is None:
                yield f"{where}.allowed", output["shape"]


def is_bound(allowed: Array) -> bool:
    return bool(np.isfinite(allowed).all() and (allowed >= 0).all())


def ask_case(op: str, case: Case, ask: AskedEngine, *, ggml: bool) -> dict[str, Array]:
    """Return the engine's answer to a case. Raises NoAnswer."""
    if ggml:
        return {RESULT: ask("compute", node_of(op, case)).reshape(case.shape)}
    return dict(ask("operate", op, dict(case.inputs), dict(case.params)))


def check_oracle(
    op: str, case: Case, row: Mapping[str, Any], tensors: Tensors, ask: AskedEngine
) -> None:
    for one in judge(row, tensors, ask_case(op, case, ask, ggml=has_meaning(op))):
        if (one.wrong is None) is (case.finding is not None):
            raise BrokenGolden(
                f"{op}, {case.id}: {ask.engine} is {'off' if one.wrong else 'right'} "
                f"({sentence(op, one)}), which is {'a' if one.wrong else 'no longer a'} finding"
            )


def sentence(op: str, one: JudgedCase) -> str:
    """Describe a judged case: place, expected value, actual value and limit."""
    where = f"{op}, {one.case}, {one.output}"
    if one.wrong is None:
        return f"{where}: agrees"
    return f"{where}{describe_mismatch(one.wrong)}"


def describe_mismatch(wrong: Mismatch) -> str:
    if wrong.kind != "value":
        return f": {wrong.detail}"
    return (
        f"{list(wrong.index)}: expected {wrong.expected:.9g}, got {wrong.actual:.9g} "
        f"(allowed {wrong.allowed:.2g}); {wrong.mismatched} of {wrong.total} elements are off"
    )


def verdict_of(
    document: Mapping[str, Any], held: list[JudgedCase], verdict: Verdicts, *, engine: str
) -> Verdict:
    """Return one verdict for all cases; known findings of the oracle are excused."""
    op, oracle = document["op"], document["provenance"]["oracle"]["engine"]
    known = {row["id"]: row["finding"] for row in document["cases"] if engine == oracle}
    wrong = [one for one in held if one.wrong is not None]
    news = [one for one in wrong if not known.get(one.case)]
    detail: dict[str, Any]
    over = {case for case, finding in known.items() if finding} - {one.case for one in wrong}
    if over:
        text = f"{op}: {min(over)} now agrees: remove {known[min(over)]} from the findings"
        return verdict("diverged", text, key=f"over/{op}")
    n = len(document["cases"])
    if news:
        names = sorted({one.case for one in news})
        text = f"{sentence(op, news[0])}; {len(names)} of {n} cases are wrong"
        detail = {"wrong": names, "output": news[0].output, "reason": news[0].reason}
        return verdict("diverged", text, detail, key=f"value/{op}")
    share = max((one.share for one in held if one.wrong is None), default=0.0)
    text = f"{op}: {n} cases, worst error {share:.2f} of its limit"
    detail = {"worst_share": share, "ways": dict(Counter(one.way for one in held))}
    if wrong:
        return verdict("excused", f"{text}; {known[wrong[0].case]} is a known finding", detail)
    return verdict("agreed", text, detail)
