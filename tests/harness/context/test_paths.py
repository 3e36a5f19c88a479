"""Twice as many tokens take another path of flash attention, which honest runs take as well."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np

from lockstep.harness.adapters.reference import Reference
from lockstep.harness.context.relations import beside_another, compare_way
from lockstep.harness.records import DEFAULT, Evaluation, Request, Verdict
from tests.contexts import context_of
from tests.models import with_values, written


def with_large_scores(folder: Path) -> Path:
    """A model whose queries are 60 times as large, and whose keys are 10 times."""
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
    """It reads another first token where there are two sequences."""

    def evaluate(self, request: Request) -> Evaluation:
        batches = deepcopy(request.batches)
        for batch in batches:
            if batch.seq_ids.any():
                batch.tokens[:4:2] = 7
        return super().evaluate(replace(request, batches=batches))


def test_reference_agrees_beside_another_sequence_by_the_noise_of_both_paths(
    tmp_path: Path,
) -> None:
    found = found_beside("reference", with_large_scores(tmp_path))
    assert isinstance(found, str), found.summary
    assert "as honest runs are" in found


def test_wrong_engine_is_found_beside_another_sequence(tmp_path: Path) -> None:
    found = found_beside(WrongBeside.name, written(tmp_path, n_layer=4))
    assert isinstance(found, Verdict)
    assert found.status == "diverged"
