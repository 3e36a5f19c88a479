"""Checkpoints whose tensors are rounded as in a GGUF file."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.gguf.split_files import open_model
from lockstep.harness.originals.checkpoint import OriginalCheckpoint
from lockstep.harness.originals.narrowed import StoredAs, stored_otherwise, with_changes
from tests.harness.originals import checkpoints as ck
from tests.harness.originals.conversions import convert


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_checkpoint_is_rounded_like_the_file(kind: str, tmp_path: Path) -> None:
    values = ck.write_checkpoint(tmp_path, "llama", "F32")
    model = convert("llama", values, kind).write(tmp_path / "made.gguf")
    checkpoint = OriginalCheckpoint(tmp_path)
    with open_model(model) as file:
        changes = stored_otherwise(checkpoint, file)
    assert changes == {
        name: StoredAs(kind, len(array)) for name, array in values.items() if array.ndim > 1
    }
    with with_changes(checkpoint, changes) as folder:
        found = OriginalCheckpoint(folder)
        assert found.config == checkpoint.config
        assert found.tokenizer == checkpoint.tokenizer
        for name, array in values.items():
            stored = found.tensors[name]
            truth = ck.stored(array, kind if array.ndim > 1 else "F32")[1]
            assert np.array_equal(stored.values(np.asarray(stored.array)), truth)
    assert not folder.exists()


def test_checkpoint_with_the_same_types_is_not_copied(tmp_path: Path) -> None:
    values = ck.write_checkpoint(tmp_path, "llama", "BF16")
    for kind in ("BF16", "F32"):
        with open_model(convert("llama", values, kind).write(tmp_path / "made.gguf")) as file:
            changes = stored_otherwise(OriginalCheckpoint(tmp_path), file)
        with with_changes(OriginalCheckpoint(tmp_path), changes) as folder:
            assert folder == tmp_path


@pytest.mark.parametrize("size", [288, 270])
def test_padding_is_added_or_cut_off(size: int, tmp_path: Path) -> None:
    values = ck.write_checkpoint(tmp_path, "qwen2", "BF16")
    embeddings = values["model.embed_tokens.weight"]
    made = convert("qwen2", values, "BF16")
    padded = np.zeros((size, ck.N_EMBD), np.float32)
    padded[: len(embeddings)] = embeddings[:size]
    made.tensors["token_embd.weight"] = padded
    checkpoint = OriginalCheckpoint(tmp_path)
    with open_model(made.write(tmp_path / "made.gguf")) as file:
        changes = stored_otherwise(checkpoint, file)
    assert changes == {"model.embed_tokens.weight": StoredAs("BF16", size)}
    with with_changes(checkpoint, changes) as folder:
        found = OriginalCheckpoint(folder)
        assert found.config["vocab_size"] == size
        stored = found.tensors["model.embed_tokens.weight"]
        assert np.array_equal(stored.values(np.asarray(stored.array)), padded)
        last = found.tensors["model.norm.weight"]
        assert np.array_equal(last.values(np.asarray(last.array)), values["model.norm.weight"])
