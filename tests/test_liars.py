"""Engines that lie about the form of their answers: each ends in a verdict, and the run goes on."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.batch import Batch
from harness.adapters.gguf_py import GgufPy
from harness.answers import FORMS, PIECES
from harness.bisect.bisection import bisect
from harness.check import BadInput, Plan, exit_code, open_plan
from harness.fuzzers.base import FuzzPlan
from harness.fuzzers.tokens import Tokens
from harness.records import (
    EXACT,
    Answered,
    Evaluation,
    Fault,
    FileSummary,
    Malformed,
    Nodes,
    Outcome,
    Request,
    TensorRecord,
    TensorSummary,
    Trace,
)
from harness.report.jsonl import read_report
from harness.run import Listener, run_plans
from harness.runner import Runner, Session
from harness.suites.base import NoAnswer
from harness.worker import QUESTIONS, STREAMS
from tests.fake_engines import lying
from tests.models import written
from tests.shadow_nodes import node

Spoil = Callable[[Any], Any]
EVERYWHERE = ("evaluate", "tokenize", "detokenize", "greedy", "metadata", "dequantize", "capture")


# --- what the liars say -----------------------------------------------------------------------


def logits(spoil: Callable[[Any], Any]) -> Spoil:
    """Of every batch."""
    return lambda run: replace(run, logits=tuple(map(spoil, run.logits)))


def trace(spoil: Callable[[tuple[TensorRecord, ...]], Any]) -> Spoil:
    """The records, where there are any."""

    def spoilt(run: Any) -> Any:
        if run.trace is None:
            return run
        return replace(run, trace=replace(run.trace, records=spoil(run.trace.records)))

    return spoilt


def site(**changes: Any) -> Spoil:
    """Of the second record, `attn_norm-0` of the prompt."""
    return trace(lambda r: (r[0], replace(r[1], site=replace(r[1].site, **changes)), *r[2:]))


def value(spoil: Callable[[Any], Any]) -> Spoil:
    return trace(lambda r: (r[0], replace(r[1], value=spoil(r[1].value)), *r[2:]))


def tensor(**changes: Any) -> Spoil:
    """Of the last row of the table."""

    def spoilt(file: FileSummary) -> FileSummary:
        return replace(file, tensors=(*file.tensors[:-1], replace(file.tensors[-1], **changes)))

    return spoilt


def each(spoil: Callable[[Any], Any]) -> Spoil:
    return lambda rows: [spoil(row) for row in rows]


def first_id(token: Any) -> Spoil:
    return each(lambda ids: [token, *ids[1:]])


def column(name: str, spoil: Callable[[Any], Any]) -> Spoil:
    return lambda nodes: replace(nodes, **{name: spoil(getattr(nodes, name))})


LIES: dict[str, tuple[str, Spoil]] = {
    **{
        f"{question} answers {name}": (question, lambda _, held=held: held)
        for question in EVERYWHERE
        for name, held in {
            "None": None,
            "a function": lambda: 1,
            "a class of exceptions": ValueError,
            "a generator": (i for i in ()),
        }.items()
    },
    "logits: None": ("evaluate", lambda run: replace(run, logits=None)),
    "logits: no batch": ("evaluate", lambda run: replace(run, logits=())),
    "logits: the first batch": ("evaluate", lambda run: replace(run, logits=run.logits[:1])),
    "logits: a batch more": ("evaluate", lambda run: replace(run, logits=2 * run.logits)),
    "logits: a list": ("evaluate", lambda run: replace(run, logits=[*run.logits])),
    "logits: one array": ("evaluate", lambda run: replace(run, logits=run.logits[0])),
    "logits: one column": ("evaluate", logits(lambda x: x[:, :1])),
    "logits: a column less": ("evaluate", logits(lambda x: x[:, 1:])),
    "logits: no column": ("evaluate", logits(lambda x: x[:, :0])),
    "logits: a row more": ("evaluate", logits(lambda x: np.concatenate([x, x[:1]]))),
    "logits: transposed": ("evaluate", logits(lambda x: x.T)),
    "logits: flat": ("evaluate", logits(lambda x: x.reshape(-1))),
    "logits: a dimension more": ("evaluate", logits(lambda x: x[None])),
    "logits: a number": ("evaluate", logits(lambda x: 1.0)),
    "logits: a scalar of numpy": ("evaluate", logits(lambda x: np.float32(1))),
    "logits: nested lists": ("evaluate", logits(lambda x: x.tolist())),
    "logits: float64": ("evaluate", logits(lambda x: x.astype(np.float64))),
    "logits: float16": ("evaluate", logits(lambda x: x.astype(np.float16))),
    "logits: big-endian": ("evaluate", logits(lambda x: x.astype(">f4"))),
    "logits: int32": ("evaluate", logits(lambda x: x.astype(np.int32))),
    "logits: complex": ("evaluate", logits(lambda x: x.astype(np.complex64))),
    "logits: strings": ("evaluate", logits(lambda x: x.astype(str))),
    "logits: objects": ("evaluate", logits(lambda x: x.astype(object))),
    "logits: masked": ("evaluate", logits(np.ma.masked_invalid)),
    "trace: None": ("evaluate", lambda run: replace(run, trace=None)),
    "trace: another type": ("evaluate", lambda run: replace(run, trace={})),
    "trace: no site": ("evaluate", trace(lambda records: ())),
    "trace: a list": ("evaluate", trace(list)),
    "trace: bare arrays": ("evaluate", trace(lambda records: tuple(r.value for r in records))),
    "trace: though nobody asked": (
        "evaluate",
        lambda run: replace(run, trace=run.trace or Trace(engine="fake", records=())),
    ),
    "site: twice": ("evaluate", trace(lambda records: (*records, records[0]))),
    "site: a string": ("evaluate", trace(lambda r: (replace(r[0], site="embd"), *r[1:]))),
    "site: unknown": ("evaluate", site(name="attn_nrom")),
    "site: a name of bytes": ("evaluate", site(name=b"attn_norm")),
    "site: a step that nobody asked for": ("evaluate", site(step=7)),
    "site: a negative step": ("evaluate", site(step=-1)),
    "site: layer 999": ("evaluate", site(layer=999)),
    "site: layer -1": ("evaluate", site(layer=-1)),
    "site: layer True": ("evaluate", site(layer=True)),
    "site: no layer": ("evaluate", site(layer=None)),
    "site: a layer outside of the layers": ("evaluate", site(name="result_norm")),
    "tensor: objects": ("evaluate", value(lambda x: x.astype(object))),
    "tensor: float64": ("evaluate", value(lambda x: x.astype(np.float64))),
    "tensor: a dimension more": ("evaluate", value(lambda x: x[None])),
    "tensor: flat": ("evaluate", value(lambda x: x.reshape(-1))),
    "tensor: transposed": ("evaluate", value(lambda x: x.T)),
    "tensor: a token less": ("evaluate", value(lambda x: x[1:])),
    "tensor: no token": ("evaluate", value(lambda x: x[:0])),
    "tensor: half of the width": ("evaluate", value(lambda x: x[:, ::2])),
    "tensor: a list": ("evaluate", value(lambda x: x.tolist())),
    "ids: of too few texts": ("tokenize", lambda rows: rows[:-1]),
    "ids: of too many texts": ("tokenize", lambda rows: [*rows, []]),
    "ids: a tuple": ("tokenize", tuple),
    "ids: nested too deep": ("tokenize", each(lambda ids: [ids])),
    "ids: not nested": ("tokenize", each(lambda ids: 5)),
    "ids: arrays": ("tokenize", each(np.array)),
    "ids: negative": ("tokenize", first_id(-1)),
    "ids: beyond the vocabulary": ("tokenize", first_id(384)),
    "ids: of 41 bits": ("tokenize", first_id(1 << 40)),
    "ids: of 40,000 bits": ("tokenize", first_id(1 << 40_000)),
    "ids: True": ("tokenize", first_id(True)),
    "ids: floats": ("tokenize", first_id(5.0)),
    "ids: numpy's": ("tokenize", first_id(np.int64(5))),
    "texts: too few": ("detokenize", lambda texts: texts[:-1]),
    "texts: str": ("detokenize", each(bytes.hex)),
    "texts: bytearrays": ("detokenize", each(bytearray)),
    "greedy: too few": ("greedy", lambda ids: ids[:-1]),
    "greedy: too many": ("greedy", lambda ids: [*ids, 1]),
    "greedy: beyond the vocabulary": ("greedy", lambda ids: [384, *ids[1:]]),
    "greedy: negative": ("greedy", lambda ids: [-1, *ids[1:]]),
    "greedy: an array": ("greedy", np.array),
    "file: tensors without their bytes": ("metadata", tensor(n_bytes=0)),
    "file: n_bytes of 2^62": ("metadata", tensor(n_bytes=1 << 62)),
    "file: a row of 2^62": ("metadata", tensor(ne=(1 << 62,), n_bytes=1 << 64)),
    "file: negative n_bytes": ("metadata", tensor(n_bytes=-64)),
    "file: an offset beyond it": ("metadata", tensor(offset=1 << 40)),
    "file: an offset of 2^62": ("metadata", tensor(offset=1 << 62)),
    "file: a negative offset": ("metadata", tensor(offset=-32)),
    "file: its data begins behind it": ("metadata", lambda f: replace(f, data_offset=1 << 30)),
    "file: its data begins before it": ("metadata", lambda f: replace(f, data_offset=-1)),
    "file: a tensor twice": ("metadata", lambda f: replace(f, tensors=2 * f.tensors)),
    "file: another shape": ("metadata", tensor(ne=(5, 7))),
    "file: no dimension": ("metadata", tensor(ne=(), n_bytes=4)),
    "file: nine dimensions": ("metadata", tensor(ne=(1,) * 9, n_bytes=4)),
    "file: half a block": ("metadata", tensor(type="Q4_0", ne=(16,), n_bytes=9)),
    "file: a name of bytes": ("metadata", tensor(name=b"output.weight")),
    "file: tensors in a dict": ("metadata", lambda f: replace(f, tensors={})),
    "file: bare names": ("metadata", lambda f: replace(f, tensors=("output.weight",))),
    "file: a value of numpy": (
        "metadata",
        lambda f: replace(f, metadata={**f.metadata, "general.name": ("STR", np.zeros(3))}),
    ),
    "file: a type that is none": (
        "metadata",
        lambda f: replace(f, metadata={**f.metadata, "general.name": ("TEXT", "x")}),
    ),
    "file: bare values": (
        "metadata",
        lambda f: replace(f, metadata={key: held for key, (_, held) in f.metadata.items()}),
    ),
    "weights: one less": ("dequantize", lambda x: x[:-1]),
    "weights: none": ("dequantize", lambda x: x[:0]),
    "weights: float64": ("dequantize", lambda x: x.astype(np.float64)),
    "weights: in rows": ("dequantize", lambda x: x.reshape(-1, 1)),
    "weights: a list": ("dequantize", list),
    "nodes: not whole": ("pieces", column("step", lambda x: x[:-1])),
    "nodes: of a step that nobody asked for": ("pieces", column("step", lambda x: x + 9)),
    "nodes: outside of the data": ("pieces", column("at", lambda x: x + 10**6)),
    "nodes: of an unknown op": ("pieces", column("op", lambda x: x + 7)),
    "nodes: another dtype": ("pieces", column("ne", lambda x: x.astype(np.float64))),
    "nodes: None": ("pieces", lambda _: None),
    "nodes: a negative number": ("capture", lambda done: replace(done, nodes=-1)),
    "nodes: a fault of objects": (
        "capture",
        lambda done: replace(done, honest=np.array([None])),
    ),
}
ENGINES = {name: lying(f"fake-liar: {name}", *lie) for name, lie in LIES.items()}
# what is well-formed, and so is compared: none of it may pass
UNTRUE: dict[str, Spoil] = {
    "no tensors": lambda f: replace(f, tensors=()),
    "no sizes": lambda f: replace(
        f, tensors=tuple(replace(t, ne=(0,), n_bytes=0) for t in f.tensors)
    ),
    "one tensor": lambda f: replace(f, tensors=f.tensors[:1]),
    "an unknown type": tensor(type="Q9_9"),
}
for name, spoil in UNTRUE.items():
    lying(f"fake-untrue: {name}", "metadata", spoil)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    small = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_head_kv": 1, "n_ff": 32}
    return written(tmp_path_factory.mktemp("liars"), seed=1, quant="F32", **small)


@pytest.fixture(autouse=True)
def gguf_py_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The `metadata` suite asks it every time; to start it takes longer than all else."""
    monkeypatch.setattr(GgufPy, "isolated", False)


def plan_for(model: Path, **changes: Any) -> Plan:
    known: dict[str, Any] = {"case": model.name, "model": model, "subject_model": model}
    known |= {"oracle": "fake-honest", "engine": "fake-honest", "settings": EXACT}
    return Plan(**(known | {"n_tokens": 5, "n_steps": 2, "command": "MODEL"} | changes))


def checked(plan: Plan, folder: Path) -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the verdicts of a report that is whole."""
    result = run_plans([plan], folder, ["lockstep", "check"], 1, Listener())
    _, *rows, footer = read_report(result.folder / "report.jsonl")
    assert footer["exit_code"] == result.code
    return result.code, rows


SUITES = ("metadata", "tokens", "dequant", "logits", "decode", "trace", "products", "shadow")
WHO_ASKS = {  # no other suite can meet a lie about it
    "metadata": ("metadata", "dequant"),
    "tokenize": ("tokens", "decode"),
    "detokenize": ("tokens",),
    "dequantize": ("dequant",),
    "evaluate": ("logits", "decode", "trace", "products"),
    "greedy": ("decode",),
    "capture": ("shadow",),
    "pieces": ("shadow",),
}
ABOUT_THE_ORACLE = ("capture", "pieces")  # a subject is not asked for its graph


def test_the_honest_engine_passes_every_suite(model: Path, tmp_path: Path) -> None:
    code, rows = checked(plan_for(model), tmp_path)
    assert {row["suite"] for row in rows} == {*SUITES}
    assert ({row["status"] for row in rows}, code) == ({"agreed"}, 0)


@pytest.mark.parametrize("role", ["oracle", "engine"])
@pytest.mark.parametrize("question", EVERYWHERE)
def test_a_lie_is_a_verdict_of_the_suites_that_ask_and_all_others_run(
    question: str, role: str, model: Path, tmp_path: Path
) -> None:
    liar = {role: f"fake-liar: {question} answers None"}
    code, rows = checked(plan_for(model, **liar), tmp_path)
    assert {row["suite"] for row in rows} == {*SUITES}
    wrong = {row["suite"] for row in rows if row["status"] == "malformed"}
    if role == "engine" and question in ABOUT_THE_ORACLE:
        assert (wrong, code) == (set(), 0)
    else:
        assert (wrong, code) == ({*WHO_ASKS[question]}, 3)
    assert {row["status"] for row in rows} <= {"agreed", "malformed"}


@pytest.mark.parametrize(
    ("name", "role"),
    [
        (name, role)
        for name, (question, _) in LIES.items()
        for role in ("oracle", "engine")
        if role == "oracle" or question not in ABOUT_THE_ORACLE
    ],
)
def test_every_lie_is_told_with_what_was_expected_and_what_came(
    name: str, role: str, model: Path, tmp_path: Path
) -> None:
    suites = WHO_ASKS[LIES[name][0]]
    code, rows = checked(plan_for(model, suites=suites, **{role: f"fake-liar: {name}"}), tmp_path)
    assert {row["suite"] for row in rows} == {*suites}
    assert {row["status"] for row in rows} <= {"agreed", "malformed"}
    assert code == 3
    told = [row for row in rows if row["status"] == "malformed"]
    assert all("expected " in row["summary"] and ", got " in row["summary"] for row in told)
    assert all(f"fake-liar: {name} gave no proper answer" in row["summary"] for row in told)
    assert all(row["repro"] for row in told)


@pytest.mark.parametrize("role", ["oracle", "engine"])
@pytest.mark.parametrize("name", [name for name, lie in LIES.items() if lie[0] == "evaluate"])
def test_bisect_ends_in_a_status_with_a_sentence(name: str, role: str, model: Path) -> None:
    opened = open_plan(plan_for(model, **{role: f"fake-liar: {name}"}), lambda _: None)
    try:
        if name == "trace: though nobody asked":  # bisect asks for it
            assert not bisect(opened.context).culprits
            return
        with pytest.raises(NoAnswer) as error:
            bisect(opened.context)
    finally:
        opened.close()
    assert error.value.status == "malformed"


@pytest.mark.parametrize("role", ["oracle", "engine"])
@pytest.mark.parametrize("name", UNTRUE)
def test_tensors_that_one_side_does_not_list_are_not_compared_by_name(
    name: str, role: str, model: Path, tmp_path: Path
) -> None:
    liar = f"fake-untrue: {name}"
    code, rows = checked(plan_for(model, suites=("dequant",), **{role: liar}), tmp_path)
    assert code == 3
    told = [row["summary"] for row in rows if row["status"] == "not-compared"]
    assert told
    assert all(f"{liar} does not list it" in t or f"{liar} lists" in t for t in told)
    assert any("blk.0.ffn_down.weight" in text for text in told) is (name != "an unknown type")


@pytest.mark.parametrize("name", UNTRUE)
def test_two_engines_with_the_same_untrue_table_do_not_agree(
    name: str, model: Path, tmp_path: Path
) -> None:
    liar = f"fake-untrue: {name}"
    plan = plan_for(model, suites=("dequant",), oracle=liar, engine=liar)
    assert checked(plan, tmp_path)[0] == 3


@pytest.mark.parametrize("role", ["oracle", "engine"])
@pytest.mark.parametrize("name", ["None", "a version that is None"])
def test_an_engine_that_does_not_say_what_it_is_is_refused(
    name: str, role: str, model: Path
) -> None:
    spoil: Spoil = (lambda _: None) if name == "None" else (lambda i: replace(i, version=None))
    lying(f"fake-nobody: {name}, {role}", "describe", spoil)
    with pytest.raises(BadInput, match=r"expected .*, got None"):
        open_plan(plan_for(model, **{role: f"fake-nobody: {name}, {role}"}), lambda _: None)


# --- in a process of its own, and what no suite asks ------------------------------------------


@pytest.mark.parametrize(
    ("question", "args", "text"),
    [
        ("describe", (), "version must be .*str.*, got a NoneType"),
        ("evaluate", (Request(batches=(Batch.of([1, 2]),)),), "those of 1 batches, got a tuple"),
        ("dequantize", ("I8", np.zeros(4, np.uint8)), r"shape \(4,\), got float32 of shape \(3,\)"),
        ("greedy", ([1, 2], 2), "a generator may not cross"),
    ],
)
def test_an_isolated_engine_lies_no_better(question: str, args: Any, text: str) -> None:
    with Runner(modules=("tests.fake_engines",)).open("fake-apart", None, EXACT) as session:
        outcome = session.ask(question, *args)
        assert isinstance(outcome, Malformed), outcome
        assert re.search(text, outcome.message)
        assert isinstance(session.ask(question, *args), Malformed)  # it can be asked again


def test_an_isolated_engine_shows_no_graph_that_is_none() -> None:
    fault = Fault(step=0, ubatch=0, index=0, kind="scale", draw=0)
    with Runner(modules=("tests.fake_engines",)).open("fake-apart", None, EXACT) as session:
        seen: list[Nodes] = []
        batches = (Batch.of([1]),)
        whole = session.stream("capture", seen.append, batches, None)
        pieces = session.stream("capture", seen.append, batches, fault)
    assert len(seen) == 1
    assert whole == Malformed(message="nodes: expected an int from 0 to 2^63 - 1, got -1")
    assert pieces == Malformed(message="a piece of the graph: expected a Nodes, got None")


class Saying(Session):
    """Answers whatever it is told to."""

    name = "fake"

    def __init__(self, value: Any) -> None:
        self.value = value

    def _ask(self, *_: Any) -> Outcome:
        return Answered(value=self.value, seconds=0.0)


BYTES = np.zeros(36, np.uint8)
ENDS = np.array([10, 36])
ENDED = {
    "endings": np.zeros(2, np.uint8),
    "digests": np.zeros(2, np.uint64),
    "peaks": np.zeros(2, np.int64),
    "words": {1: "why"},
}
DONE = {"code": 0, "pos": [[0, 1]], "ubatches": None, "slots": None, "order": [0], "logits": None}
PLAN = {"steps": [["clear"], ["decode", []]]}
SUM_OF = node("ADD", np.zeros((2, 3), np.float32))
ROW = TensorSummary(name="t", ne=(32, 2), type="Q4_0", offset=0, n_bytes=36)
TIMES = {"plain": 1.0, "callback": 1.0, "capture": 1.0, "copy": 1.0, "nodes": 3.0}
ASKED: dict[str, tuple[tuple[Any, ...], Any, list[Any]]] = {  # arguments, an answer, lies
    "multiply": (
        ("Q4_0", BYTES, np.zeros((5, 32), np.float32)),
        np.zeros((5, 2), np.float32),
        [np.zeros((2, 5), np.float32), np.zeros((5, 2)), np.zeros(10, np.float32), [], None],
    ),
    "parse": (
        (BYTES, ENDS, "buffer"),
        ENDED,
        [
            {},
            ENDED | {"more": 1},
            ENDED | {"endings": np.zeros(3, np.uint8)},
            ENDED | {"endings": np.full(2, 200, np.uint8)},
            ENDED | {"endings": np.array(["a", "b"])},
            ENDED | {"peaks": np.zeros(2)},
            ENDED | {"words": {2: "of no file"}},
            ENDED | {"words": [1, 2]},
        ],
    ),
    "schedule": (
        (PLAN,),
        [DONE, DONE | {"logits": np.zeros((1, 8), np.float32)}],
        [
            [DONE],
            [DONE, {}],
            [DONE, DONE | {"code": None}],
            [DONE, DONE | {"pos": 5}],
            [DONE, DONE | {"order": [np.zeros(3)]}],
            [DONE, DONE | {"logits": np.zeros(8, np.float32)}],
            [DONE, DONE | {"logits": np.zeros((1, 8))}],
        ],
    ),
    "compute": (
        (SUM_OF,),
        np.zeros((1, 1, 2, 3), np.float32),
        [np.zeros((2, 3), np.float32), np.zeros((1, 1, 2, 3)), np.zeros((1, 1, 3, 2), np.float32)],
    ),
    "operate": (
        ("rms_norm", {}, {}),
        {"result": np.zeros(3, np.float32)},
        [None, {1: np.zeros(3)}, {"result": [1.0]}, {"result": np.array([None])}],
    ),
    "name_tensors": (
        (b"GGUF",),
        (ROW,),
        [[ROW], (ROW, ROW), (replace(ROW, n_bytes=35),), (replace(ROW, ne=(31, 2)),), ("t",)],
    ),
    "time_dequantize": (("Q4_0", BYTES, 0.1, 1), 1e-6, [0.0, -1.0, float("nan"), "1", None]),
    "time_capture": (
        ((Batch.of([1]),),),
        TIMES,
        [{}, TIMES | {"copy": 0.0}, TIMES | {"plain": "1"}, [1.0]],
    ),
}


@pytest.mark.parametrize("question", ASKED)
def test_what_no_suite_asks_has_a_form_as_well(question: str) -> None:
    args, honest, lies = ASKED[question]
    assert isinstance(Saying(honest).ask(question, *args), Answered)
    for lie in lies:
        outcome = Saying(lie).ask(question, *args)
        assert isinstance(outcome, Malformed), lie
        assert "expected" in outcome.message


def test_every_question_has_a_form_and_every_stream_one_of_its_pieces() -> None:
    assert FORMS.keys() == {*QUESTIONS}
    assert PIECES.keys() == {*STREAMS}
    assert {*ASKED} | {*EVERYWHERE} | {"describe"} == {*QUESTIONS}


def test_numbers_that_are_not_finite_are_an_answer() -> None:
    held = np.array([[np.nan, np.inf], [-np.inf, 0]], np.float32)
    request = Request(batches=(Batch.of([0, 1]),))
    session = Saying(Evaluation(logits=(held,), trace=None))
    assert isinstance(session.ask("evaluate", request), Answered)


def test_an_engine_in_this_process_does_not_answer_for_a_consumer_that_fails(model: Path) -> None:
    def fails(piece: Nodes) -> None:
        raise ZeroDivisionError("in the consumer")

    with (
        Runner().open("fake-honest", model, EXACT) as session,
        pytest.raises(ZeroDivisionError, match="consumer"),
    ):
        session.stream("capture", fails, (Batch.of([1]),), None)


def test_two_tokenizers_that_lie_alike_do_not_agree(model: Path) -> None:
    plan = FuzzPlan(targets=(str(model),), engine="fake-liar: ids: True", cases=8)
    plan = replace(plan, oracle=plan.engine)
    found = list(Tokens().run(plan, lambda *_: None))
    assert exit_code(found) == 3
    assert "agreed" not in {v.status for v in found}
