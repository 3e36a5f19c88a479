"""Logits must not depend on how a question is asked. Engines whose logits depend on this are found.

With twice as many tokens, flash attention uses another code path, in honest runs too.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.harness.adapters.reference import Reference
from lockstep.harness.check.check import run_suites
from lockstep.harness.context.relations import beside_another, compare_way
from lockstep.harness.records import DEFAULT, Evaluation, Request, Verdict
from lockstep.harness.runs.run import builtin_model
from tests.contexts import context_of, statuses
from tests.models import with_values, written


class Right(Reference, name="asked: right"):
    """A right engine. Each subclass is wrong if a question is asked in one particular way."""

    def evaluate(self, request: Request) -> Evaluation:
        found = super().evaluate(request)
        return replace(found, logits=tuple(self.rows(request, found)))

    def rows(self, request: Request, found: Evaluation) -> Iterator[Any]:
        yield from found.logits


class Watched(Right, name="asked: watched"):
    """An engine whose logits are right as long as no tensor is requested."""

    def rows(self, request: Request, found: Evaluation) -> Iterator[Any]:
        for rows in found.logits:
            yield rows * np.float32(1.001) if request.capture else rows


class Summed(Right, name="asked: summed otherwise"):
    """An honest engine whose order of sums depends on the rest of the batch."""

    def rows(self, request: Request, found: Evaluation) -> Iterator[Any]:
        for rows, batch in zip(found.logits, request.batches, strict=True):
            yield np.nextafter(rows, np.float32(len(batch) * 1e9)).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builtin_model("f32", tmp_path_factory.mktemp("model"))


def logits_of(model: Path, engine: str, n_tokens: int = 12) -> list[Verdict]:
    with context_of(model, engine=engine, n_tokens=n_tokens) as context:
        return list(run_suites(context, ("logits",)))


@pytest.mark.parametrize("engine", ["asked: right", "asked: summed otherwise", "fast"])
def test_honest_engine_gives_the_same_answers_for_any_batching(engine: str, model: Path) -> None:
    (verdict,) = logits_of(model, engine)
    assert verdict.status == "agreed"
    assert verdict.detail["same"][:3] == [
        "with tensors shown",
        "with outputs of some tokens only",
        "beside another sequence",
    ]


@pytest.mark.parametrize(
    ("engine", "way"),
    [
        ("mutant:batch-outputs-from-the-first", "with outputs of some tokens only"),
        ("mutant:cache-sequences-leak", "beside another sequence"),
        ("asked: watched", "with tensors shown"),
    ],
)
def test_an_engine_that_contradicts_itself_is_found(engine: str, way: str, model: Path) -> None:
    first, *wrong = logits_of(model, engine)
    assert first.status == "agreed"  # a single run is right
    of_itself = [verdict for verdict in wrong if "gives different logits" in verdict.summary]
    assert [verdict.detail["asked"] for verdict in of_itself] == [way]
    assert wrong[0].status == "diverged"
    twice = "these batches have twice as many tokens, which may be the cause"
    assert wrong[0].summary.endswith(twice) is (way == "beside another sequence")


def test_run_with_another_sequence_needs_room_in_the_cache(model: Path) -> None:
    with context_of(model, engine="asked: right", n_tokens=12) as context:
        context.settings = replace(context.settings, n_ctx=20)
        (verdict,) = run_suites(context, ("logits",))
    assert "beside another sequence" not in verdict.detail["same"]


def test_wrong_choice_of_experts_is_found_with_fewer_outputs(
    tmp_path: Path,
) -> None:
    """Honest runs are made if only few rows differ, to see whether they choose the same experts."""
    model = builtin_model("moe", tmp_path)
    found = logits_of(model, "mutant:experts-of-limited-capacity", n_tokens=32)
    asked = {verdict.detail.get("asked") for verdict in found if verdict.status == "diverged"}
    assert "with outputs of some tokens only" in asked
    assert statuses(found) <= {"agreed", "diverged"}


def with_large_scores(folder: Path) -> Path:
    """Return a model whose queries are 60 times as large, and whose keys are 10 times as large."""
    path = written(folder, n_layer=4)
    for layer in range(4):
        for name, factor in (("attn_q", 60), ("attn_k", 10)):
            tensor = f"blk.{layer}.{name}.weight"
            with_values(path, path, tensor, lambda values, by=factor: values * np.float32(by))
    return path


def found_beside(engine: str, path: Path) -> Verdict | str:
    with context_of(path, engine=engine, settings=DEFAULT, n_tokens=32) as context:
        way = beside_another(context.batches, context.facts.n_vocab, context.seed)
        runs: list[Evaluation] = [
            context.ask(context.subject, "evaluate", request)
            for request in (Request(batches=context.batches), way.request)
        ]
        return compare_way(context, way, runs[0].logits, runs[1].logits)


class WrongBeside(Reference, name="paths: wrong beside another sequence"):
    """An engine that reads wrong tokens at the beginning of the first sequence if a batch has two
    sequences."""

    def evaluate(self, request: Request) -> Evaluation:
        batches = deepcopy(request.batches)
        for batch in batches:
            if batch.seq_ids.any():
                batch.tokens[:4:2] = 7
        return super().evaluate(replace(request, batches=batches))


def test_reference_agrees_within_the_noise_if_a_sequence_is_added(
    tmp_path: Path,
) -> None:
    found = found_beside("reference", with_large_scores(tmp_path))
    assert isinstance(found, str), found.summary
    assert "; honest runs are" in found


def test_wrong_engine_is_found_if_a_sequence_is_added(tmp_path: Path) -> None:
    found = found_beside(WrongBeside.name, written(tmp_path, n_layer=4))
    assert isinstance(found, Verdict)
    assert found.status == "diverged"
