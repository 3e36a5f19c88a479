"""Vectors of operations: honest float32 passes, and typical mistakes fail."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.node import PLAIN, Node
from lockstep.engine.ops.ggml.base import MEANINGS
from lockstep.golden.load import load_vectors
from lockstep.golden.manifest import read_manifest
from lockstep.golden.ops.form import Case, node_of
from lockstep.golden.ops.judge import JudgedCase, judge
from lockstep.golden.ops.vectors import case_of, operations
from lockstep.golden.store import DEFAULT_ROOT, BrokenGolden
from lockstep.golden.suites.base import AskedEngine, Golden, Source, Vectors, Verdicts
from lockstep.golden.suites.ops import verdict_of
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.context.runner import LocalSession
from lockstep.harness.known import entries
from lockstep.harness.records import EXACT
from tests.golden.ggml_by_hand import (
    HONEST,
    Answer,
    norm,
    product,
    rms_norm,
    rope,
    sigmoid,
    softmax,
    x_of,
)

F32 = NDArray[np.float32]
OPS = operations()
ENTRIES = {entry.path: entry for entry in read_manifest(DEFAULT_ROOT)}


@cache
def vectors(op: str) -> Vectors:
    return load_vectors(DEFAULT_ROOT, ENTRIES[f"ops/{op.lower()}.json"], ENTRIES)


def right_answers(found: Vectors, row: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Return right values of all outputs, those of the first way, in the output's type."""
    answers = {}
    for name, output in row["outputs"].items():
        value = found.tensors[f"{row['id']}/{name}.{min(output['ways'])}"]
        with np.errstate(over="ignore"):
            answers[name] = value.astype(PLAIN[output["type"]])
    return answers


def judged(op: str, change: Callable[[NDArray[Any]], NDArray[Any]]) -> list[JudgedCase]:
    """Judge right answers that `change` has changed."""
    found = vectors(op)
    held: list[JudgedCase] = []
    for row in found.document["cases"]:
        answers = {name: change(value) for name, value in right_answers(found, row).items()}
        held += judge(row, found.tensors, answers)
    return held


def wrong_cases(op: str, engine: Answer) -> list[str]:
    """Return the names of the cases on which the engine's single result is wrong."""
    found = vectors(op)
    wrong = []
    for row in found.document["cases"]:
        (name,) = row["outputs"]
        with np.errstate(all="ignore"):
            got = np.asarray(engine(case_of(row, found.tensors)))
        kind = PLAIN[row["outputs"][name]["type"]]
        held = judge(row, found.tensors, {name: got.astype(kind)})
        wrong += [one.case for one in held if one.wrong]
    return wrong


def test_vectors_cover_exactly_the_operations() -> None:
    assert set(OPS) >= MEANINGS.keys()
    found = {path.stem for path in (DEFAULT_ROOT / "ops").glob("*.json")}
    assert found == {op.lower() for op in OPS}


@pytest.mark.parametrize("op", OPS)
def test_truth_is_a_right_answer(op: str) -> None:
    assert [one for one in judged(op, lambda x: x) if one.wrong] == []


def off(x: NDArray[Any]) -> NDArray[Any]:
    """Make the largest element smaller by a ten-thousandth, or an index by one."""
    out = x.copy()
    if x.dtype.kind == "i":
        out += 1
    elif x.size:
        at = np.unravel_index(int(np.argmax(np.where(np.isfinite(x), np.abs(x), 0))), x.shape)
        out[at] *= 0.9999
    return out


def not_a_number(x: NDArray[Any]) -> NDArray[Any]:
    out = x.copy()
    if x.size:
        out.reshape(-1)[0] = -1 if x.dtype.kind == "i" else np.nan
    return out


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "change", [off, not_a_number, lambda x: x[..., :-1], lambda x: x.astype(np.float64)]
)
def test_changed_answer_is_found(op: str, change: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    assert any(one.wrong for one in judged(op, change))


# --- an engine's own float32 ------------------------------------------------------------------


@pytest.mark.parametrize("op", HONEST)
def test_plain_float32_implementation_passes(op: str) -> None:
    engine, lacks = HONEST[op]
    wrong = wrong_cases(op, lambda case: zeros(case) if left_out(case, lacks) else engine(case))
    assert [case for case in wrong if not any(word in case for word in lacks.split())] == []


def left_out(case: Case, lacks: str) -> bool:
    return any(word in case.id for word in lacks.split())


def zeros(case: Case) -> F32:
    return np.zeros(case.shape, np.float32)


WRONG: dict[str, tuple[str, Answer]] = {
    "a norm whose result is forgotten": ("RMS_NORM", lambda c: x_of(c)),
    "a norm that takes the mean off": ("RMS_NORM", norm),
    "a norm without eps": ("RMS_NORM", lambda c: rms_norm(without(c, eps=0.0))),
    "a norm with another eps": ("RMS_NORM", lambda c: rms_norm(without(c, eps=1e-5))),
    "rotation of the other pairs": ("ROPE", lambda c: rope(c, halves=c.params["mode"] == 0)),
    "rotation by another base": ("ROPE", lambda c: rope(without(c, freq_base=1.0001e4))),
    "GELU of another kind": ("GELU", lambda c: x_of(c) * sigmoid(np.float32(1.702) * x_of(c))),
    "SILU for GELU": ("GELU", lambda c: x_of(c) * sigmoid(x_of(c))),
    "SILU without its factor": ("SILU", lambda c: sigmoid(x_of(c))),
    "softmax without the scale": ("SOFT_MAX", lambda c: softmax(without(c, scale=1.0))),
    "softmax of the other axis": ("SOFT_MAX", lambda c: np.swapaxes(softmax(c), -1, -1)[::-1]),
    "a matrix loaded by columns": ("MUL_MAT", lambda c: by_columns(c)),
    "rounding half to even": ("ROUND", lambda c: np.rint(x_of(c))),
}


def without(case: Case, **params: float) -> Case:
    return Case(id=case.id, inputs=case.inputs, params={**case.params, **params}, shape=case.shape)


def by_columns(case: Case) -> F32:
    if not isinstance(case.inputs["a"], np.ndarray):
        return zeros(case)
    a = case.inputs["a"]
    turned = a.swapaxes(-1, -2).reshape(a.shape)
    return product(Case(id=case.id, inputs={**case.inputs, "a": turned}))


@pytest.mark.parametrize("name", WRONG)
def test_known_mistake_is_found(name: str) -> None:
    op, engine = WRONG[name]
    found = vectors(op)
    plain = [row["id"] for row in found.document["cases"] if "nan" not in row["id"]]
    assert set(wrong_cases(op, engine)) & set(plain)


# --- places -----------------------------------------------------------------------------------


def order_judged(ids: list[int], rule: str) -> bool:
    output = {"type": "I32", "shape": [len(ids)], "judged": rule, "of": "x"}
    output["ways"] = {"plain": {"allowed": 0.0, "reason": ""}}
    row = {"id": "c", "outputs": {"y": output}}
    x = np.array([1.0, 2.0, 1.0, 0.5], np.float32)
    want = np.array([1, 0, 2][: len(ids)], np.int32)
    (one,) = judge(row, {"c/x": x, "c/y.plain": want}, {"y": np.array(ids, np.int32)})
    return one.wrong is None


@pytest.mark.parametrize(
    ("rule", "ids", "right"),
    [
        *(("ties", [1, 0, 2], True), ("ties", [1, 2, 0], True), ("ties", [0, 1, 2], False)),
        *(("ties", [1, 0, 0], False), ("ties", [1, 0, 9], False), ("ties", [1, 0, -2], False)),
        *(("choice", [2, 1, 0], True), ("choice", [2, 1, 3], False)),
        *(("choice", [1, 1, 0], False), ("choice", [1, 0, 4], False)),
    ],
)
def test_only_equal_values_may_swap(rule: str, ids: list[int], right: bool) -> None:
    assert order_judged(ids, rule) is right


# --- findings and contradictions --------------------------------------------------------------


def findings() -> Iterator[tuple[str, str, str]]:
    for op in OPS:
        for row in vectors(op).document["cases"]:
            if row["finding"] is not None:
                yield row["finding"], op, row["id"]


def test_findings_in_vectors_match_the_list() -> None:
    known = entries("op")
    assert sorted(findings()) == sorted((k["id"], k["op"], k["case"]) for k in known)
    for entry in known:
        assert entry["sentence"].endswith(".")
        assert entry["status"].startswith(("reported", "not reported: "))


def test_vectors_that_contradict_their_document_are_refused() -> None:
    good = vectors("GELU")
    golden = Golden.member("ops")()
    assert list(golden.inconsistencies(good)) == []
    bound = "length-3/y.plain.allowed"
    for name, value in (
        (bound, -good.tensors[bound]),
        (bound, good.tensors[bound] + np.inf),
        ("length-3/x", good.tensors["length-3/x"][:1]),
        ("length-3/more", good.tensors["length-3/x"]),
    ):
        bad = Vectors(document=good.document, tensors={**good.tensors, name: value})
        assert list(golden.inconsistencies(bad))


class Shifted(Reference):
    """An engine that is wrong by a tenth in every op."""

    name = "shifted"

    def compute(self, node: Node) -> NDArray[Any]:
        return super().compute(node) + np.float32(0.1)


def source_of(engine: type[Reference]) -> Source:
    session = LocalSession(engine, None, EXACT)
    ask = AskedEngine(engine=engine.name, session=session)
    return Source(ask=ask, info=ask("describe"), settings=EXACT, seed=1)


def test_oracle_out_of_bound_makes_no_vectors() -> None:
    golden = Golden.member("ops")()
    with pytest.raises(BrokenGolden, match=r"ADD, .*: shifted is off .*which is a finding"):
        golden.make(source_of(Shifted), "ADD")
    with pytest.raises(
        BrokenGolden, match=r"L2_NORM, nan: reference is right.*no longer a finding"
    ):
        golden.make(source_of(Reference), "L2_NORM")
    assert golden.make(source_of(Reference), "ADD").document["op"] == "ADD"


def test_resolved_finding_is_reported() -> None:
    document = vectors("L2_NORM").document
    verdict = Verdicts(suite="golden-ops", case="l2_norm", repro="")
    right = [JudgedCase(case=row["id"], output="y", way="plain") for row in document["cases"]]
    assert verdict_of(document, right, verdict, engine="llama.cpp").status == "diverged"
    assert verdict_of(document, right, verdict, engine="mine").status == "agreed"


def test_single_ops_get_strides_and_the_first_right_way() -> None:
    """The reference engine computes from values; strides matter only to engines that read
    memory."""
    case = next(
        case_of(row, vectors("ADD").tensors)
        for row in vectors("ADD").document["cases"]
        if row["id"] == "transposed-b"
    )
    node: Node = node_of("ADD", case)
    assert node.source(1).nb == (16, 4, 96, 96)
    got = Reference(None, EXACT).compute(node)
    assert np.array_equal(got.reshape(4, 6), x_of(case, "a") + x_of(case, "b"))
