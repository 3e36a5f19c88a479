"""Embeddings pooled from llama.cpp's rows, correctly or wrongly, compared with
sentence-transformers."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.harness.context.runner import Runner
from lockstep.harness.foreign.building import is_added
from lockstep.harness.foreign.engines import ENGINES
from lockstep.harness.originals.findings import DifferenceKind
from lockstep.harness.records import EXACT, Answered
from lockstep.harness.runs.original_run import ENGINE, RunOptions
from lockstep.harness.runs.original_texts import compare_texts
from tests.harness.originals import checkpoints as ck
from tests.harness.originals.conversions import convert

Rows = NDArray[np.float32]
LENGTH, PROMPT = 6, "w7 w8 "
SHORT, LONG = "w1 w2", "w1 w20 w3 w40 w5 w60 w9 w80"
FIRST, ZERO, LAST = 266, 101, 102  # the ids of BOS, w0 and the separator


def ids_of(text: str) -> list[int]:
    return [FIRST, *(ZERO + int(word[1:]) for word in text.split()), LAST]


def mean(rows: Rows) -> Rows:
    return np.asarray(rows.mean(axis=0))


def first(rows: Rows) -> Rows:
    return np.asarray(rows[0])


def normed(row: Rows) -> Rows:
    return np.asarray(row / np.linalg.norm(row))


Pipe = Callable[[Callable[[str], Rows]], Rows]  # takes a function from text to rows
WAYS: dict[str, tuple[str, Pipe, list[DifferenceKind]]] = {
    "right": (SHORT, lambda rows: normed(mean(rows(PROMPT + SHORT))), []),
    "cut": (LONG, lambda rows: normed(mean(rows("w7 w8 w1 w20"))), []),
    "raw": (SHORT, lambda rows: mean(rows(PROMPT + SHORT)), [DifferenceKind.normalisation]),
    "cls": (SHORT, lambda rows: normed(first(rows(PROMPT + SHORT))), [DifferenceKind.pooling]),
    "bare": (SHORT, lambda rows: normed(mean(rows(SHORT))), [DifferenceKind.prompt]),
    "whole": (LONG, lambda rows: normed(mean(rows(PROMPT + LONG))), [DifferenceKind.truncation]),
    "both": (
        SHORT,
        lambda rows: first(rows(SHORT)),
        [DifferenceKind.prompt, DifferenceKind.pooling, DifferenceKind.normalisation],
    ),
    "other": (SHORT, lambda rows: normed(mean(rows("w3 w4"))), [DifferenceKind.embedding]),
}


def test_different_ways_to_make_embeddings_are_named(tmp_path: Path) -> None:
    if not is_added(ENGINES[ENGINE]):
        pytest.skip("originals is not added (lockstep engine add originals): nothing was run")
    values = ck.write_checkpoint(tmp_path, "bert", "F32")
    ck.write_pipeline(tmp_path, "mean", LENGTH, {"query": PROMPT})
    made = convert("bert", values)
    unpooled = made.write(tmp_path / "unpooled.gguf")
    made.keys["bert.pooling_type"] = ("U32", 1)
    model, lines = made.write(tmp_path / "pooled.gguf"), []
    with Runner().open("llama.cpp", unpooled, replace(EXACT, n_ctx=128)) as session:

        def rows(text: str) -> Rows:
            outcome = session.ask("embed", (Batch.of(ids_of(text)),))
            assert isinstance(outcome, Answered)
            return np.asarray(outcome.value[0])

        for text, way, _ in WAYS.values():
            line = {"text": text, "embedding": way(rows).tolist(), "prompt": "query"}
            lines.append(json.dumps(line) + "\n")
    path = tmp_path / "made.jsonl"
    path.write_text("".join(lines))
    found = compare_texts(tmp_path, model, path, RunOptions(), lambda _: None)
    assert (found.compared, found.skipped) == (len(WAYS), [])
    named: dict[str, list[DifferenceKind]] = {name: [] for name in WAYS}
    for each in found.differences:
        named[[*WAYS][int(each.place.split()[1]) - 1]].append(each.kind)
    assert named == {name: kinds for name, (_, _, kinds) in WAYS.items()}
