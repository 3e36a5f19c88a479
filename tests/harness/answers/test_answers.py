"""Checks of answers: every question demands a form, from an engine in this process and from an
isolated engine."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.harness.answers import FORMS, PIECES
from lockstep.harness.asking.worker import QUESTIONS, STREAMS
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.protocol.smoke import SAMPLED
from lockstep.harness.records import (
    EXACT,
    Answered,
    DrawAnswer,
    DrawRequest,
    Evaluation,
    Fault,
    Malformed,
    Nodes,
    Request,
    SampleAnswer,
    TensorSummary,
)
from tests.lies import EVERYWHERE, Saying
from tests.shadow_nodes import node


@pytest.fixture(scope="module")
def apart() -> Iterator[Session]:
    with Runner(modules=("tests.fake_engines",)).open("fake-apart", None, EXACT) as session:
        yield session


@pytest.mark.parametrize(
    ("question", "args", "text"),
    [
        ("evaluate", (Request(batches=(Batch.of([1, 2]),)),), "answers for 1 batches, got a tuple"),
        ("dequantize", ("I8", np.zeros(4, np.uint8)), r"shape \(4,\), got float32 of shape \(3,\)"),
        ("greedy", ([1, 2], 2), "a generator cannot be sent"),
        ("describe", (), "version must be .*str.*, got a NoneType"),
    ],
)
def test_answers_of_an_isolated_engine_are_checked_too(
    question: str, args: Any, text: str, apart: Session
) -> None:
    outcome = apart.ask(question, *args)
    assert isinstance(outcome, Malformed), outcome
    assert re.search(text, outcome.message)


def test_isolated_engine_with_a_malformed_graph_is_rejected(apart: Session) -> None:
    fault = Fault(step=0, ubatch=0, index=0, kind="scale", draw=0)
    seen: list[Nodes] = []
    batches = (Batch.of([1]),)
    whole = apart.stream("capture", seen.append, batches, None)
    pieces = apart.stream("capture", seen.append, batches, fault)
    assert len(seen) == 1
    assert whole == Malformed(message="nodes: expected an int from 0 to 2^63 - 1, got -1")
    assert pieces == Malformed(message="a piece of the graph: expected a Nodes, got None")


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
TWO_AND_ONE = (Batch.of([0, 1]), Batch.of([2], start=2))
DRAWN = DrawAnswer(token=1, listed=((1, 0.75), (2, 0.25)))
CHOSEN = SampleAnswer(
    sizes=np.array([[2, 1]], np.int32),
    selected=np.array([[-1, 1]], np.int32),
    ids=np.array([1, 2, 1], np.int32),
    logits=np.zeros(3, np.float32),
    p=np.full(3, np.nan, np.float32),
)
PROMPT, ROWS = Batch.of([1, 2]), np.zeros((2, 8), np.float32)
# question -> arguments, an answer, lies
ASKED: dict[str, tuple[tuple[Any, ...], Any, list[Any]]] = {
    "multiply": (
        ("Q4_0", BYTES, np.zeros((5, 32), np.float32)),
        np.zeros((5, 2), np.float32),
        [np.zeros((2, 5), np.float32), np.zeros((5, 2)), np.zeros(10, np.float32), [], None],
    ),
    "embed": (
        (TWO_AND_ONE,),
        # with pooling, each sequence has one row
        (np.zeros((2, 8), np.float32), np.zeros((1, 8), np.float32)),
        [
            (np.zeros((2, 8), np.float32),),
            (np.zeros((2, 8), np.float32), np.zeros((1, 9), np.float32)),
            (np.zeros((3, 8), np.float32), np.zeros((1, 8), np.float32)),
            (np.zeros((2, 8)), np.zeros((1, 8))),
            [np.zeros((2, 8), np.float32), np.zeros((1, 8), np.float32)],
            None,
        ],
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
    "save": (([PROMPT], [PROMPT], "state"), (ROWS,), [(), (ROWS, ROWS), (ROWS[:1],), [ROWS], None]),
    "load": (("state", [PROMPT], 0), (ROWS,), [(), (ROWS.astype(np.float64),), (ROWS[0],)]),
    "guide": (([PROMPT], [PROMPT], 1.5), (ROWS,), [(), (ROWS, ROWS), (ROWS[:1],), None]),
    "restore": (
        (BYTES, ENDS, None, PROMPT),
        ENDED,
        [{}, ENDED | {"endings": np.zeros(3, np.uint8)}, ENDED | {"words": {2: "of no file"}}],
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
    "logprobs": (
        ([[1, 2], b"text"], 3),
        [[(1, -0.5), (7, float("-inf"))], [(b"a", -1.0), (b"a", -2.0)]],
        [
            [[(1, -0.5)]],
            [[(1, -0.5), (1, -0.6)], []],
            [[(1, -1)], []],
            [[(1, 2, -1.0)], []],
            [[(b"a", -1.0), (1, -2.0)], []],
            [[(-1, -1.0)], []],
            [[("a", -1.0)], []],
            None,
        ],
    ),
    "generate": ((b"prompt", 2), b"text", ["text", None, bytes(1 << 20)]),
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
    "draw": (
        (DrawRequest(chain=({"sampler": "dist"},), prompt=(1,), seed=3),),
        DRAWN,
        [
            None,
            replace(DRAWN, token=-1),
            replace(DRAWN, listed=((1, 0.5), (1, 0.5))),
            replace(DRAWN, listed=((1, 1.5),)),
        ],
    ),
    "sample": (
        (SAMPLED,),
        CHOSEN,
        [
            None,
            replace(CHOSEN, sizes=np.array([[2, 1]], np.int64)),
            replace(CHOSEN, sizes=np.array([[2, 1, 0]], np.int32)),
            replace(CHOSEN, sizes=np.array([[2, -1]], np.int32)),
            replace(CHOSEN, ids=np.array([1, 4, 1], np.int32)),
            replace(CHOSEN, ids=np.array([1, 1, 1], np.int32)),
            replace(CHOSEN, selected=np.array([[-2, 1]], np.int32)),
            replace(CHOSEN, p=np.zeros(2, np.float32)),
            replace(CHOSEN, sorted=np.array([True])),
        ],
    ),
    "time_dequantize": (("Q4_0", BYTES, 0.1, 1), 1e-6, [0.0, -1.0, float("nan"), "1", None]),
    "time_capture": (
        ((Batch.of([1]),),),
        TIMES,
        [{}, TIMES | {"copy": 0.0}, TIMES | {"plain": "1"}, [1.0]],
    ),
}


@pytest.mark.parametrize("question", ASKED)
def test_question_that_no_suite_asks_has_a_form(question: str) -> None:
    args, honest, lies = ASKED[question]
    assert isinstance(Saying(honest).ask(question, *args), Answered)
    for lie in lies:
        outcome = Saying(lie).ask(question, *args)
        assert isinstance(outcome, Malformed), lie
        assert "expected" in outcome.message


def test_every_question_and_stream_has_a_form() -> None:
    assert FORMS.keys() == {*QUESTIONS}
    assert PIECES.keys() == {*STREAMS}
    assert {*ASKED} | {*EVERYWHERE} | {"describe"} == {*QUESTIONS}


def test_non_finite_numbers_are_an_answer() -> None:
    held = np.array([[np.nan, np.inf], [-np.inf, 0]], np.float32)
    request = Request(batches=(Batch.of([0, 1]),))
    session = Saying(Evaluation(logits=(held,), trace=None))
    assert isinstance(session.ask("evaluate", request), Answered)
