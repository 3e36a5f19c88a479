"""Engines that lie about the form of their answers: each ends in a verdict, and the run goes on."""

import json
import pickle
import re
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.errors import EngineError
from lockstep.harness.adapters.gguf_py.adapter import GgufPy
from lockstep.harness.bisect.bisection import bisect
from lockstep.harness.check.check import BadInput, Plan, open_plan
from lockstep.harness.context.runner import Runner
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.exit_codes import exit_code, exit_code_of_run
from lockstep.harness.fuzzers.base import FuzzPlan
from lockstep.harness.fuzzers.batch.judge import Judge
from lockstep.harness.fuzzers.batch.schedule import ScheduleCase
from lockstep.harness.fuzzers.tokens.fuzzer import TokensFuzzer
from lockstep.harness.parallel.works import Forks
from lockstep.harness.records import EXACT, Nodes, Verdict
from lockstep.harness.report.jsonl import plain, read_report, rows_of
from lockstep.harness.runs.run import Listener, check_one, run_plans
from tests.lies import EVERYWHERE, LIES, UNTRUE, Saying, Spoil, lying
from tests.models import written


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


def reported(plan: Plan, folder: Path) -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the verdicts of a report that is whole."""
    result = run_plans([plan], folder, ["lockstep", "check"], Forks(1), Listener())
    _, *rows, footer = read_report(result.folder / "report.jsonl")
    assert footer["exit_code"] == result.code
    return result.code, [row for row in rows if row["suite"] != NOT_OF_LLAMA]


def checked(plan: Plan) -> tuple[int, list[dict[str, Any]]]:
    """The same without a fork and a page for each: verdicts cross as from a fork, and each is a row
    that a report may have."""
    said: list[Any] = []
    check_one(plan, lambda value: said.append(pickle.loads(pickle.dumps(value))))
    verdicts = [value for value in said if isinstance(value, Verdict)]
    rows = [{"kind": "verdict", **asdict(verdict)} for verdict in verdicts]
    raw = [json.dumps(plain(row), allow_nan=False).encode() for row in rows]
    shown = [row for row in rows_of(Path("report.jsonl"), raw) if row["suite"] != NOT_OF_LLAMA]
    return exit_code_of_run(verdicts), shown


SUITES = ("metadata", "tokens", "dequant", "logits", "decode", "trace", "products", "shadow")
NOT_OF_LLAMA = "embeddings"  # not applicable
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
# the model's graph shows them: a node of no such name, and a wrong one
NO_NODES = {
    "site: unknown", "site: layer 999", "site: layer -1", "site: no layer",
    "site: a layer outside of the layers",
}  # fmt: skip
WRONG_NODES = {
    "tensor: transposed", "tensor: a token less", "tensor: no token", "tensor: half of the width",
}  # fmt: skip
ABOUT_THE_ORACLE = ("capture", "pieces")  # a subject is not asked for its graph


def is_asked(name: str, role: str) -> bool:
    """Nobody asks the oracle for its tensors: llama.cpp's graph is what ops are judged along."""
    of_tensors = name.startswith(("trace:", "site:", "tensor:"))
    in_any_run = name in ("trace: though nobody asked", "trace: another type")
    return role == "engine" or not of_tensors or in_any_run


def first_of_each_kind(names: Iterable[str]) -> list[str]:
    """One lie about logits, one about sites, one of no proper type."""
    return list({re.split(r":| answers", name)[0]: name for name in reversed(list(names))}.values())


# where nobody asks it makes no difference what would be answered
UNASKED = [name for name in LIES if not is_asked(name, "oracle")]
SOME_UNASKED = first_of_each_kind(UNASKED)
# bisect asks as suites do, which are told every lie; what it does with nodes is its own
BISECTED = [name for name, lie in LIES.items() if lie[0] == "evaluate"]
BISECTED = [n for n in BISECTED if n in {*NO_NODES, *WRONG_NODES, *first_of_each_kind(BISECTED)}]


def test_the_honest_engine_passes_every_suite(model: Path, tmp_path: Path) -> None:
    code, rows = reported(plan_for(model), tmp_path)
    assert {row["suite"] for row in rows} == {*SUITES}
    assert ({row["status"] for row in rows}, code) == ({"agreed"}, 0)


@pytest.mark.parametrize("role", ["oracle", "engine"])
@pytest.mark.parametrize("question", EVERYWHERE)
def test_a_lie_is_a_verdict_of_the_suites_that_ask_and_all_others_run(
    question: str, role: str, model: Path, tmp_path: Path
) -> None:
    liar = {role: f"fake-liar: {question} answers None"}
    code, rows = reported(plan_for(model, **liar), tmp_path)
    assert {row["suite"] for row in rows} == {*SUITES}
    wrong = {row["suite"] for row in rows if row["status"] == "malformed"}
    if role == "engine" and question in ABOUT_THE_ORACLE:
        assert (wrong, code) == (set(), 0)
    elif (role, question) == ("engine", "tokenize"):  # `decode` has the oracle's prompt
        assert (wrong, code) == ({"tokens"}, 3)
    else:
        tensors = {"trace", "products"} if role == "oracle" else set()  # of the engine alone
        assert (wrong, code) == ({*WHO_ASKS[question]} - tensors, 3)
    assert {row["status"] for row in rows} <= {"agreed", "malformed"}


@pytest.mark.parametrize(
    ("name", "role"),
    [
        (name, role)
        for name, (question, _) in LIES.items()
        for role in ("oracle", "engine")
        if role == "oracle" or question not in ABOUT_THE_ORACLE
        if role == "engine" or name not in UNASKED or name in SOME_UNASKED
    ],
)
def test_every_lie_is_told_with_what_was_expected_and_what_came(
    name: str, role: str, model: Path
) -> None:
    suites = WHO_ASKS[LIES[name][0]]
    code, rows = checked(plan_for(model, suites=suites, **{role: f"fake-liar: {name}"}))
    assert {row["suite"] for row in rows} == {*suites}
    if role == "engine" and name in WRONG_NODES:
        wrong = [row for row in rows if row["status"] == "diverged"]
        assert (code, {row["detail"]["site"] for row in wrong} >= {"attn_norm"}) == (1, True)
        return
    if role == "engine" and name in NO_NODES:
        named = [row["summary"] for row in rows if row["status"] == "not-applicable"]
        assert (code, any("has no such node" in summary for summary in named)) == (0, True)
        return
    assert {row["status"] for row in rows} <= {"agreed", "malformed"}
    assert code == (3 if is_asked(name, role) else 0)
    told = [row for row in rows if row["status"] == "malformed"]
    assert all("expected " in row["summary"] and ", got " in row["summary"] for row in told)
    assert all(f"fake-liar: {name} gave no proper answer" in row["summary"] for row in told)
    assert all(row["repro"] for row in told)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        (name, role)
        for name in BISECTED
        for role in ("oracle", "engine")
        if role == "engine" or name not in UNASKED or name in SOME_UNASKED
    ],
)
def test_bisect_ends_in_a_status_with_a_sentence(name: str, role: str, model: Path) -> None:
    opened = open_plan(plan_for(model, **{role: f"fake-liar: {name}"}), lambda _: None)
    try:
        if role == "engine" and name in WRONG_NODES:
            assert str(bisect(opened.context).culprits[0].site) == "attn_norm-0"
            return
        if not is_asked(name, role) or name in NO_NODES:
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
    name: str, role: str, model: Path
) -> None:
    liar = f"fake-untrue: {name}"
    code, rows = checked(plan_for(model, suites=("dequant",), **{role: liar}))
    assert code == 3
    told = [row["summary"] for row in rows if row["status"] == "not-compared"]
    assert told
    assert all(f"{liar} does not list it" in t or f"{liar} lists" in t for t in told)
    assert any("blk.0.ffn_down.weight" in text for text in told) is (name != "an unknown type")


@pytest.mark.parametrize("name", UNTRUE)
def test_two_engines_with_the_same_untrue_table_do_not_agree(name: str, model: Path) -> None:
    liar = f"fake-untrue: {name}"
    plan = plan_for(model, suites=("dequant",), oracle=liar, engine=liar)
    assert checked(plan)[0] == 3


@pytest.mark.parametrize(("role", "ends"), [("oracle", BadInput), ("engine", NoAnswer)])
@pytest.mark.parametrize("name", ["None", "a version that is None"])
def test_an_engine_that_does_not_say_what_it_is_is_refused(
    name: str, role: str, ends: type[Exception], model: Path
) -> None:
    """Of the engine under test it is a verdict, like all that it does wrong at its start."""
    spoil: Spoil = (lambda _: None) if name == "None" else (lambda i: replace(i, version=None))
    lying(f"fake-nobody: {name}, {role}", "describe", spoil)
    with pytest.raises(ends, match=r"expected .*, got None"):
        open_plan(plan_for(model, **{role: f"fake-nobody: {name}, {role}"}), lambda _: None)


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
    found = list(TokensFuzzer().run(plan, lambda *_: None))
    assert exit_code(found) == 3
    assert "agreed" not in {v.status for v in found}


def test_an_engine_that_refuses_to_decode_diverges(model: Path) -> None:
    def refuse(_: Any) -> None:
        raise EngineError("no such type here")

    lying("fake-refuser", "dequantize", refuse)
    code, rows = checked(plan_for(model, suites=("dequant",), engine="fake-refuser"))
    assert ({row["status"] for row in rows}, code) == ({"diverged"}, 1)
    assert {row["key"] for row in rows} == {"dequant/diverged/F32"}


def test_a_schedule_that_is_not_answered_properly_ends_in_a_difference() -> None:
    case = ScheduleCase(n_ctx=8, n_ubatch=8, n_seq=1, unified=True, steps=(("clear",),))
    found = Judge(Saying([]), Saying([]))(case)
    assert found is not None
    assert (found.symptom, found.who) == ("malformed", "fake")
    assert "expected a list of 1 steps, got a list of 0" in found.text
