"""A golden run compares every kind of engine: honest, wrong, and engines with few answers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import Unsupported
from lockstep.engine.quants.base import F32
from lockstep.golden.suites import run as of_runs
from lockstep.golden.suites.base import AskedEngine, Golden, Vectors, Verdicts
from lockstep.golden.suites.parts.run_compare import compare_ways, same_ids
from lockstep.golden.suites.run import GoldenRun
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.context.runner import LocalSession, Runner
from lockstep.harness.records import EXACT, Evaluation, Request, Site, TensorRecord, Trace, Verdict
from tests.golden.small_runs import CHANGES, DRAWN, GREEDY, NOISE, PROMPT, ROWS, changed, small_run

VERDICT = Verdicts(suite="golden-run", case="none", repro="again")
NODE = "ffn_out-3"
HIDDEN = np.random.default_rng(5).normal(size=(ROWS, 40)).astype(np.float32)


class Engine(Reference):
    """An engine that answers from the random logits; it is not registered."""

    name = "drawn"
    logits: F32 = DRAWN
    ids: Sequence[int] = GREEDY
    hidden: F32 | None = HIDDEN

    def evaluate(self, request: Request) -> Evaluation:
        ends = np.cumsum([len(batch) for batch in request.batches])
        trace = None
        if request.capture:
            if self.hidden is None:
                raise Unsupported("it shows no tensors")
            parts = np.split(self.hidden, ends[:-1])
            sites = [Site(step=i, layer=3, name="ffn_out") for i in range(len(parts))]
            records = [TensorRecord(site=s, value=v) for s, v in zip(sites, parts, strict=True)]
            trace = Trace(engine=self.name, records=tuple(records))
        return Evaluation(logits=tuple(np.split(self.logits, ends[:-1])), trace=trace)

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        assert list(prompt) == PROMPT
        return list(self.ids)


class OnlyText(Engine):
    def evaluate(self, request: Request) -> Evaluation:
        raise Unsupported("it shows no logits")


class OnlyLogits(Engine):
    hidden = None

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        raise Unsupported("it does not generate")


class WrongHidden(Engine):
    hidden = HIDDEN[:, ::-1].copy()


def replayed(engine: type[Reference], vectors: Vectors | None = None) -> list[Verdict]:
    with LocalSession(engine, None, EXACT) as session:
        ask = AskedEngine(engine=engine.name, session=session)
        return list(GoldenRun().replay(vectors or small_run(**{NODE: HIDDEN}), ask, VERDICT))


def test_written_golden_contradicts_nothing() -> None:
    assert list(GoldenRun().inconsistencies(small_run())) == []


@pytest.mark.parametrize("name", CHANGES)
def test_honest_logits_agree_and_wrong_logits_diverge(name: str) -> None:
    found = compare_ways(small_run(), "logits", changed(name), VERDICT)
    assert found.status == ("agreed" if CHANGES[name] else "diverged"), found
    assert found.detail["way"] == ("plain" if name == "no conversions" else "ggml")


def test_engine_that_answers_everything_is_compared_in_everything() -> None:
    assert [v.status for v in replayed(Engine)] == ["agreed"] * 3


@pytest.mark.parametrize(
    ("engine", "statuses", "says"),
    [
        (OnlyText, ["not-compared", "agreed", "not-compared"], "it shows no logits"),
        (OnlyLogits, ["agreed", "not-compared", "not-compared"], "it does not generate"),
        (WrongHidden, ["agreed", "agreed", "diverged"], NODE),
    ],
)
def test_unanswered_question_is_named_and_others_are_judged(
    engine: type[Engine], statuses: list[str], says: str
) -> None:
    found = replayed(engine)
    assert [v.status for v in found] == statuses, found
    assert any(says in v.summary for v in found if v.status != "agreed")


def test_engine_without_logits_is_compared_by_greedy_ids() -> None:
    """Vectors of this kind have all logits. A question without an answer does not stop the next
    question."""

    class Greedy(OnlyText):
        ids = GREEDY

    document = {"prompt": PROMPT, "greedy": GREEDY, "tolerance": {"allowed": NOISE}}
    vectors = Vectors(document=document, tensors={"logits": DRAWN})
    with LocalSession(Greedy, None, EXACT) as session:
        ask = AskedEngine(engine="greedy", session=session)
        found = list(Golden.member("logits")().replay(vectors, ask, VERDICT))
    assert [v.status for v in found] == ["not-compared", "agreed"]


def unasked() -> Vectors:
    """Return vectors with a node that the user did not ask for."""
    vectors = small_run(**{NODE: HIDDEN})
    logits, node = vectors.document["shown"]
    document = {**vectors.document, "shown": [logits, {**node, "asked": False}]}
    return replace(vectors, document=document)


@pytest.mark.parametrize(
    ("engine", "status"),
    [(Engine, "agreed"), (OnlyLogits, "not-applicable"), (WrongHidden, "diverged")],
)
def test_unrequested_node_is_compared_if_shown(engine: type[Engine], status: str) -> None:
    assert replayed(engine, unasked())[-1].status == status


def test_node_that_an_engine_lacks_is_named() -> None:
    found = replayed(Engine, small_run(**{NODE: HIDDEN, "attn_norm-3": HIDDEN}))
    assert [v.status for v in found] == ["agreed"] * 3 + ["not-compared"]
    assert "shows no node attn_norm-3" in found[-1].summary


def beside(margin: float, place: int = 1) -> Vectors:
    """Return vectors in which the second greedy id's logit leads by this margin."""
    vectors = small_run()
    tensors = {name: value.copy() for name, value in vectors.tensors.items()}
    for way in ("ggml", "plain"):
        top = tensors[f"logits/{way}.top"][len(PROMPT)]
        top[place:] = top[0] - np.float32(margin)
    return Vectors(document=vectors.document, tensors=tensors)


def parted(vectors: Vectors, place: int) -> list[int]:
    """Return greedy ids whose second id has the logit at `place` among the row's largest logits."""
    ids = vectors.tensors["logits/ggml.ids"][len(PROMPT)]
    other = int(ids[place]) if place < len(ids) else min({*range(700)} - {*ids.tolist()})
    return [GREEDY[0], other, *GREEDY[2:]]


@pytest.mark.parametrize(
    ("margin", "place", "status"),
    [
        (3 * NOISE, 1, "excused"),  # twice the limit is 4 * NOISE
        (5 * NOISE, 1, "diverged"),
        (5 * NOISE, 99, "diverged"),
        (3 * NOISE, 99, "not-compared"),  # a tie is possible, but the logit was not stored
    ],
)
def test_other_greedy_id_is_a_tie_only_if_its_logit_is_near(
    margin: float, place: int, status: str
) -> None:
    vectors = beside(margin)
    assert same_ids(vectors, GREEDY, VERDICT).status == "agreed"
    assert same_ids(vectors, parted(vectors, place), VERDICT).status == status


def test_logits_of_another_shape_diverge() -> None:
    assert compare_ways(small_run(), "logits", DRAWN[:, :-1], VERDICT).status == "diverged"
    assert compare_ways(small_run(), "logits", DRAWN[1:], VERDICT).status == "diverged"


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("greedy", [1, *GREEDY[1:]], "not those of the largest logits"),
        ("margins", [0.0] * len(GREEDY), "the margins are not those"),
        ("batches", [1], "the batches are not those"),
    ],
)
def test_document_that_contradicts_its_tensors_is_refused(
    key: str, value: list[int], says: str
) -> None:
    vectors = small_run()
    edited = Vectors(document={**vectors.document, key: value}, tensors=vectors.tensors)
    assert any(says in text for text in GoldenRun().inconsistencies(edited))


def test_engine_with_another_graph_is_still_compared_in_its_outputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wrong model file may lack a node, which must not stop the comparison."""

    def lacks(*_: Any) -> Any:
        raise Unsupported("no node named 'Qcur-0 ROPE'")

    monkeypatch.setattr(of_runs, "nodes_of", lacks)
    ask = AskedEngine(engine="mine", session=Runner().open("reference", None, EXACT))
    assert of_runs.shown_of(ask, (), "logits", ()) == {}
