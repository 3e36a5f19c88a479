"""Steps from a text to an embedding: the checkpoint's own steps, and deviations from these
steps."""

import json
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.errors import InvalidModel
from lockstep.harness.originals.checkpoint import OriginalCheckpoint
from lockstep.harness.originals.findings import OriginalPart, PartResult
from lockstep.harness.originals.pipeline import (
    Pipeline,
    cut,
    pipeline_of,
    read_embeddings,
    variants,
)
from lockstep.harness.runs.original import verdicts_of
from lockstep.harness.runs.original_texts import ExplainedText, note_texts
from tests.harness.originals import checkpoints as ck

RIGHT = Pipeline(prompt="q: ", prompts=("q: ",), length=6, pooling="mean", normalised=True)


def test_pipeline_is_read_from_the_checkpoint(tmp_path: Path) -> None:
    ck.write_checkpoint(tmp_path, "bert")
    assert pipeline_of(OriginalCheckpoint(tmp_path), 128, "") is None
    ck.write_pipeline(tmp_path, pooling="cls", length=6, prompts={"query": "q: ", "none": ""})
    checkpoint = OriginalCheckpoint(tmp_path)
    found = pipeline_of(checkpoint, 128, "query")
    assert found == Pipeline(
        prompt="q: ", prompts=("q: ",), length=6, pooling="cls", normalised=True
    )
    usual = pipeline_of(checkpoint, 4, "")
    assert usual is not None
    assert (usual.prompt, usual.length) == ("", 4)
    with pytest.raises(InvalidModel):
        pipeline_of(checkpoint, 128, "document")


def test_variants_begin_with_the_right_pipeline() -> None:
    made = list(variants(RIGHT, 128))
    assert made[0] == ([], RIGHT)
    assert [len(traits) for traits, _ in made] == sorted(len(traits) for traits, _ in made)
    assert {trait for traits, _ in made for trait in traits} == {
        *("prompt", "length", "pooling", "normalised")
    }


def test_every_deviation_has_a_sentence() -> None:
    ways = [
        ExplainedText(right=RIGHT, found=found, other=tuple(other), distance=0.5, allowed=1e-6)
        for other, found in variants(RIGHT, 128)
        if len(other) == 1
    ]
    strange = ExplainedText(right=RIGHT, found=None, other=(), distance=0.5, allowed=1e-6)
    part = PartResult(part=OriginalPart.embeddings)
    note_texts(part, [*ways, strange])
    texts = [verdict.summary for verdict in verdicts_of(part, "made.gguf", "")]
    assert sum("different prompt" in text for text in texts) == 1
    assert sum("tokens: expected 6, got 128" in text for text in texts) == 1
    assert sum("expected 'mean', got 'cls'" in text for text in texts) == 1
    assert sum("is not normalised" in text for text in texts) == 1
    assert texts[-1].startswith(f"text {len(ways) + 1} differs by 5.0e-01, allowed 1.0e-06")


def test_truncated_text_keeps_the_ids_after_every_text() -> None:
    assert cut([1, 5, 6, 7, 2], 1, 4) == [1, 5, 6, 2]
    assert cut([1, 5, 6, 7, 8], 0, 4) == [1, 5, 6, 7]
    assert cut([1, 5, 2], 1, 4) == [1, 5, 2]


def test_pooling_and_norm_compute_what_their_names_say() -> None:
    rows = np.array([[3, 4], [1, 0], [2, 2]], np.float32)
    for pooling, values in (("mean", [2, 2]), ("cls", [3, 4]), ("lasttoken", [2, 2])):
        made = Pipeline(length=9, pooling=pooling, normalised=False)
        assert made.embed(rows).tolist() == values
    normed = Pipeline(length=9, pooling="cls", normalised=True).embed(rows)
    assert normed == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "{",
        '{"text": "a"}',
        '{"text": 1, "embedding": [1, 2]}',
        '{"text": "a", "embedding": [1]}',
        '{"text": "a", "embedding": [1, NaN]}',
        '{"text": "a", "embedding": [1, 2], "prompt": 3}',
        '{"text": "a", "embedding": [1, true]}',
        '{"text": "a", "embedding": [1, 1' + "0" * 400 + "]}",
        '{"text": "\\ud800", "embedding": [1, 2]}',
    ],
)
def test_line_without_text_or_numbers_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    path.write_text(f"{json.dumps({'text': 'a', 'embedding': [1, 2]})}\n{line}\n")
    with pytest.raises(InvalidModel, match="line 2"):
        read_embeddings(path, 2)


def test_file_with_no_line_or_too_many_lines_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    line = json.dumps({"text": "a", "embedding": [1, 2]}) + "\n"
    for n in (0, 65):
        path.write_text(line * n)
        with pytest.raises(InvalidModel):
            read_embeddings(path, 2)
    path.write_text(line * 64)
    assert len(read_embeddings(path, 2)) == 64
