"""Engines whose answers have a wrong form. Each gets a verdict, and the run continues."""

import json
import pickle
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
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
from lockstep.harness.records import EXACT, Malformed, Nodes, Outcome, Request, Verdict
from lockstep.harness.report.jsonl import plain, read_report, rows_of
from lockstep.harness.runs.run import Listener, check_one, run_plans
from tests.contexts import context_of, statuses
from tests.lies import EVERYWHERE, LIES, UNTRUE, Saying, Spoil, lying
from tests.models import some_batches, written


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    small = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_head_kv": 1, "n_ff": 32}
    return written(tmp_path_factory.mktemp("liars"), seed=1, quant="F32", **small)


@pytest.fixture(autouse=True)
def gguf_py_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run gguf-py in this process. The suite `metadata` asks gguf-py every time, and most of the
    time would be spent on starting it."""
    monkeypatch.setattr(GgufPy, "isolated", False)


def plan_for(model: Path, **changes: Any) -> Plan:
    known: dict[str, Any] = {"case": model.name, "model": model, "subject_model": model}
    known |= {"oracle": "fake-honest", "engine": "fake-honest", "settings": EXACT}
    return Plan(**(known | {"n_tokens": 5, "n_steps": 2, "command": "MODEL"} | changes))


def checked(plan: Plan, folder: Path | None = None) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code and the rows of verdicts. If a folder is given, write a whole report.
    Without a folder, no process is forked and no page is drawn. But verdicts are still pickled, as
    from a fork, and converted to rows of a report."""
    if folder is not None:
        result = run_plans([plan], folder, ["lockstep", "check"], Forks(1), Listener())
        _, *rows, footer = read_report(result.folder / "report.jsonl")
        assert footer["exit_code"] == (code := result.code)
    else:
        said: list[Any] = []
        check_one(plan, lambda value: said.append(pickle.loads(pickle.dumps(value))))
        verdicts = [value for value in said if isinstance(value, Verdict)]
        lines = [{"kind": "verdict", **asdict(verdict)} for verdict in verdicts]
        raw = [json.dumps(plain(row), allow_nan=False).encode() for row in lines]
        code, rows = exit_code_of_run(verdicts), list(rows_of(Path("report.jsonl"), raw))
    return code, [row for row in rows if row["suite"] != "embeddings"]  # this suite does not apply


SUITES = ("metadata", "tokens", "dequant", "logits", "decode", "trace", "products", "shadow")
WHO_ASKS = {
    "metadata": {"metadata", "dequant"},
    "tokenize": {"tokens", "decode"},
    "detokenize": {"tokens"},
    "dequantize": {"dequant"},
    "evaluate": {"logits", "decode", "trace", "products"},
    "greedy": {"decode"},
    "capture": {"shadow"},
}
# questions that are never asked: a subject is not asked for its graph, `decode` does not ask a
# subject for the oracle's prompt, and the oracle is not asked for tensors, because ops are judged
# along llama.cpp's graph
UNASKED = {
    ("engine", "capture"): {"shadow"},
    ("engine", "tokenize"): {"decode"},
    ("oracle", "evaluate"): {"trace", "products"},
}
# the model's graph does not have these nodes, or shows that they are wrong
NO_NODES = (
    *("site: unknown", "site: layer 999", "site: layer -1", "site: no layer"),
    "site: a layer outside of the layers",
)
WRONG_NODES = (
    *("tensor: transposed", "tensor: a token less", "tensor: no token"),
    "tensor: half of the width",
)
# only engines that read the nodes notice these
SEEN_BY_READERS = ("nodes: outside of the data", "nodes: of an unknown op")
ASKED: dict[str, tuple[Any, ...]] = {
    "metadata": (),
    "tokenize": ([b"Once upon a time", b"a"],),
    "detokenize": ([[5, 6], [7]],),
    "greedy": ([5, 6], 3),
    "dequantize": ("F32", np.zeros(16, np.uint8)),
}
FLAGS = {"detokenize": {"remove_special": True, "unparse_special": False}}


def outcome_of(name: str, model: Path) -> Outcome:
    """Return the outcome that a session makes of a malformed answer."""
    question, batches = LIES[name][0], some_batches()
    shown = name.startswith(("trace:", "site:", "tensor:")) and name != "trace: though nobody asked"
    with Runner().open(f"fake-liar: {name}", model, EXACT) as session:
        if question in ("capture", "pieces"):
            return session.stream("capture", lambda _: None, batches, None)
        if question == "evaluate":
            return session.ask(question, Request(batches=batches, capture=shown))
        return session.ask(question, *ASKED[question], **FLAGS.get(question, {}))


def test_every_malformed_answer_gets_expected_and_actual_value(model: Path) -> None:
    """An answer that is wrong but well-formed is compared instead."""
    passed = []
    for name in LIES:
        outcome = outcome_of(name, model)
        if isinstance(outcome, Malformed):
            assert "expected " in outcome.message, name
            assert ", got " in outcome.message, name
        else:
            passed.append(name)
    assert sorted(passed) == sorted((*NO_NODES, *WRONG_NODES, *SEEN_BY_READERS))


def test_honest_engine_passes_every_suite(model: Path, tmp_path: Path) -> None:
    code, rows = checked(plan_for(model), tmp_path)
    assert {row["suite"] for row in rows} == {*SUITES}
    assert ({row["status"] for row in rows}, code) == ({"agreed"}, 0)


@pytest.mark.parametrize("role", ["oracle", "engine"])
@pytest.mark.parametrize("question", EVERYWHERE)
def test_malformed_answer_is_a_verdict_and_other_suites_run(
    question: str, role: str, model: Path, tmp_path: Path
) -> None:
    liar = f"fake-liar: {question} answers None"
    whole = tmp_path if question == "evaluate" else None
    code, rows = checked(plan_for(model, **{role: liar}), whole)
    assert {row["suite"] for row in rows} == {*SUITES}
    told = [row for row in rows if row["status"] == "malformed"]
    wrong = WHO_ASKS[question] - UNASKED.get((role, question), set())
    assert ({row["suite"] for row in told}, code) == (wrong, 3 if wrong else 0)
    assert {row["status"] for row in rows} <= {"agreed", "malformed"}
    assert all(liar in row["summary"] and row["repro"] for row in told)


@pytest.mark.parametrize("name", SEEN_BY_READERS)
def test_unreadable_nodes_are_malformed(name: str, model: Path) -> None:
    code, rows = checked(plan_for(model, suites=("shadow",), oracle=f"fake-liar: {name}"))
    assert ({row["status"] for row in rows}, code) == ({"malformed"}, 3)


@pytest.mark.parametrize("name", [*NO_NODES, *WRONG_NODES])
def test_unknown_node_is_named_and_a_wrong_one_diverges(name: str, model: Path) -> None:
    plan = plan_for(model, suites=("logits", "trace"), engine=f"fake-liar: {name}")
    code, rows = checked(plan)
    if name in WRONG_NODES:
        wrong = {row["detail"]["site"] for row in rows if row["status"] == "diverged"}
        assert (code, "attn_norm" in wrong) == (1, True)
    else:
        named = [row["summary"] for row in rows if row["status"] == "not-applicable"]
        assert (code, any("graph has no" in summary for summary in named)) == (0, True)


@pytest.mark.parametrize(
    ("name", "role", "culprits"),
    [
        *((name, "engine", ["attn_norm-0"]) for name in WRONG_NODES),
        *((name, "engine", []) for name in NO_NODES),
        ("site: twice", "oracle", []),  # no question reveals this
        ("logits: None", "oracle", None),
        *((name, "engine", None) for name in ("logits: None", "site: twice", "trace: None")),
    ],
)
def test_bisect_after_a_malformed_answer_ends_with_a_sentence(
    name: str, role: str, culprits: list[str] | None, model: Path
) -> None:
    """After a malformed answer, the bisection has no wrong op to name. After any other wrong
    answer, it names the first wrong op."""
    with context_of(plan_for(model, **{role: f"fake-liar: {name}"})) as context:
        if culprits is not None:
            assert [str(each.site) for each in bisect(context).culprits[:1]] == culprits
            return
        with pytest.raises(NoAnswer) as error:
            bisect(context)
    assert error.value.status == "malformed"


@pytest.mark.parametrize("roles", [("oracle",), ("engine",), ("oracle", "engine")], ids=str)
@pytest.mark.parametrize("name", UNTRUE)
def test_unlisted_tensors_are_not_compared_and_named(
    name: str, roles: tuple[str, ...], model: Path
) -> None:
    """Two engines with the same wrong table do not count as agreeing."""
    liar = f"fake-untrue: {name}"
    code, rows = checked(plan_for(model, suites=("dequant",), **dict.fromkeys(roles, liar)))
    assert code == 3
    told = [row["summary"] for row in rows if row["status"] == "not-compared"]
    assert told
    if len(roles) == 1:
        assert all(f"{liar} does not list this tensor" in t or f"{liar} lists" in t for t in told)
        assert any("blk.0.ffn_down.weight" in text for text in told) is (name != "an unknown type")


@pytest.mark.parametrize(("role", "ends"), [("oracle", BadInput), ("engine", NoAnswer)])
@pytest.mark.parametrize("name", ["None", "a version that is None"])
def test_engine_without_a_description_is_refused(
    name: str, role: str, ends: type[Exception], model: Path
) -> None:
    """A missing description is a verdict for the engine under test, like any fault at its start."""
    spoil: Spoil = (lambda _: None) if name == "None" else (lambda i: replace(i, version=None))
    lying(f"fake-nobody: {name}, {role}", "describe", spoil)
    with pytest.raises(ends, match=r"expected .*, got None"):
        open_plan(plan_for(model, **{role: f"fake-nobody: {name}, {role}"}), lambda _: None)


def test_failed_consumer_is_not_blamed_on_a_local_engine(model: Path) -> None:
    def fails(piece: Nodes) -> None:
        raise ZeroDivisionError("in the consumer")

    with (
        Runner().open("fake-honest", model, EXACT) as session,
        pytest.raises(ZeroDivisionError, match="consumer"),
    ):
        session.stream("capture", fails, (Batch.of([1]),), None)


def test_two_tokenizers_with_equal_malformed_answers_do_not_agree(model: Path) -> None:
    plan = FuzzPlan(targets=(str(model),), engine="fake-liar: ids: True", cases=8)
    plan = replace(plan, oracle=plan.engine)
    found = list(TokensFuzzer().run(plan, lambda *_: None))
    assert exit_code(found) == 3
    assert "agreed" not in statuses(found)


def test_an_engine_that_refuses_to_decode_diverges(model: Path) -> None:
    def refuse(_: Any) -> None:
        raise EngineError("no such type here")

    lying("fake-refuser", "dequantize", refuse)
    code, rows = checked(plan_for(model, suites=("dequant",), engine="fake-refuser"))
    assert ({row["status"] for row in rows}, code) == ({"diverged"}, 1)
    assert {row["key"] for row in rows} == {"dequant/diverged/F32"}


def test_malformed_schedule_answer_is_a_difference() -> None:
    case = ScheduleCase(n_ctx=8, n_ubatch=8, n_seq=1, unified=True, steps=(("clear",),))
    found = Judge(Saying([]), Saying([]))(case)
    assert found is not None
    assert (found.symptom, found.who) == ("malformed", "fake")
    assert "expected a list of 1 steps, got a list of 0" in found.text
