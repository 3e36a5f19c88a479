"""Twice as many tokens take another path of flash attention, which honest runs take as well."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np

from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.check.check import open_plan
from lockstep.harness.context.relations import beside_another, compare_way
from lockstep.harness.records import DEFAULT, Evaluation, Request, Verdict
from tests.harness.check.test_check import plan_for
from tests.models import written


def with_large_scores(folder: Path) -> Path:
    """A model whose queries are 60 times as large, and whose keys are 10 times."""
    path = written(folder, n_layer=4)
    raw = bytearray(path.read_bytes())
    with GgufFile.open(path) as file:
        for name, info in file.tensors.items():
            factor = {"attn_q": 60, "attn_k": 10}.get(name.split(".")[-2], 1)
            at = file.data_offset + info.offset
            values = np.frombuffer(raw, "<f4", info.n_bytes // 4, at) * np.float32(factor)
            raw[at : at + values.nbytes] = values.tobytes()
    path.write_bytes(raw)
    return path


def found_beside(engine: str, path: Path) -> Verdict | str:
    plan = plan_for(path, engine=engine, settings=DEFAULT, n_tokens=32)
    opened = open_plan(plan, lambda _: None)
    try:
        context = opened.context
        way = beside_another(context.batches, context.facts.n_vocab, context.seed)
        runs: list[Evaluation] = [
            context.ask(context.subject, "evaluate", request)
            for request in (Request(batches=context.batches), way.request)
        ]
        return compare_way(context, way, runs[0].logits, runs[1].logits)
    finally:
        opened.close()


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
