"""Batches for models: prompts, batches on a filled cache, several sequences."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.records import EXACT
from lockstep.harness.runs.shadow import settings_for
from lockstep.harness.shadow.batches import Work, batches_of
from lockstep.harness.synth.gguf_writer import write_gguf


def file_of(path: Path, tensor: str = "token_embd.weight") -> GgufFile:
    rows = [(tensor, (8, 40), "F32", np.zeros((40, 8), np.float32))]
    write_gguf(path, {"general.architecture": ("STR", "llama")}, rows)
    return GgufFile.open(path)


def test_prompt_is_followed_by_three_tokens_and_single_tokens(tmp_path: Path) -> None:
    with file_of(tmp_path / "m.gguf") as file:
        found = batches_of(Work(tokens=5, batches=3), 1, file)
        assert [len(b) for b in found] == [5, 3, 1, 1]
        assert np.concatenate([b.positions for b in found]).tolist() == list(range(10))
        assert all(b.tokens.max() < 40 for b in found)
        again = batches_of(Work(tokens=5, batches=3), 2, file)
    assert found[0].tokens.tolist() != again[0].tokens.tolist()


def test_every_batch_has_all_sequences_at_their_own_positions(tmp_path: Path) -> None:
    work = Work(tokens=4, batches=1, sequences=3)
    with file_of(tmp_path / "m.gguf") as file:
        prompt, second = batches_of(work, 0, file)
    assert prompt.seq_ids.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert second.positions.tolist() == [4, 5, 6] * 3
    assert prompt.tokens[:4].tolist() != prompt.tokens[4:8].tolist()
    assert work.cells == 21


@pytest.mark.parametrize(
    ("work", "ubatch", "n_ctx", "n_ubatch"),
    [
        (Work(), None, 512, 512),
        (Work(tokens=700), None, 768, 700),
        (Work(tokens=100, sequences=8), None, 1024, 800),
        (Work(tokens=100), 8, 512, 8),
    ],
)
def test_settings_fit_the_batches(
    work: Work, ubatch: int | None, n_ctx: int, n_ubatch: int
) -> None:
    found = settings_for(work, EXACT, ubatch=ubatch)
    assert (found.n_ctx, found.n_ubatch) == (n_ctx, n_ubatch)


def test_model_without_embeddings_has_no_vocabulary(tmp_path: Path) -> None:
    with file_of(tmp_path / "m.gguf", "other") as file, pytest.raises(EngineError, match="token_"):
        batches_of(Work(), 0, file)
