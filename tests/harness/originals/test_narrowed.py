"""Checkpoints whose tensors are rounded as a file stores them."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.gguf.split_files import open_model
from lockstep.harness.originals.checkpoint import OriginalCheckpoint
from lockstep.harness.originals.narrowed import narrower_types, with_types
from tests.harness.originals import checkpoints as ck
from tests.harness.originals.conversions import convert


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_checkpoint_is_rounded_as_the_file_is(kind: str, tmp_path: Path) -> None:
    values = ck.write_checkpoint(tmp_path, "llama", "F32")
    model = convert("llama", values, kind).write(tmp_path / "made.gguf")
    checkpoint = OriginalCheckpoint(tmp_path)
    with open_model(model) as file:
        types = narrower_types(checkpoint, file)
    assert types == {name: kind for name, array in values.items() if array.ndim > 1}
    with with_types(checkpoint, types) as folder:
        found = OriginalCheckpoint(folder)
        assert found.config == checkpoint.config
        assert found.tokenizer == checkpoint.tokenizer
        for name, array in values.items():
            stored = found.tensors[name]
            truth = ck.stored(array, types.get(name, "F32"))[1]
            assert np.array_equal(stored.values(np.asarray(stored.array)), truth)
    assert not folder.exists()


def test_checkpoint_of_the_same_types_is_its_own_folder(tmp_path: Path) -> None:
    values = ck.write_checkpoint(tmp_path, "llama", "BF16")
    for kind in ("BF16", "F32"):
        with open_model(convert("llama", values, kind).write(tmp_path / "made.gguf")) as file:
            types = narrower_types(OriginalCheckpoint(tmp_path), file)
        with with_types(OriginalCheckpoint(tmp_path), types) as folder:
            assert folder == tmp_path
