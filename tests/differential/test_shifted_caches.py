"""Caches whose positions are shifted: the keys of all our architectures."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.model import Model
from lockstep.engine.ops.reference import ReferenceOps as Ops
from lockstep.harness.shadow.models import make_variants
from lockstep.harness.synth.llama import LlamaRecipe, write_llama


@pytest.mark.parametrize(
    "arch", ["deepseek2", "gemma2", "gpt-oss", "lfm2", "phi3", "qwen3", "yarn"]
)
def test_shifted_sequence_gives_the_same_results(arch: str, tmp_path: Path) -> None:
    """A shift rotates only the rotated part of a key, and does not change its length.

    In llama.cpp, keys grow by YaRN's factor at each shift
    (llama-cpp-yarn-keys-grow-with-each-shift).
    """
    path = tmp_path / "model.gguf"
    if arch == "yarn":
        write_llama(LlamaRecipe(rope_yarn_factor=4.0, rope_freqs=True), path)
    else:
        make_variants([arch], tmp_path)[0].rename(path)
    found = []
    for delta in (0, 7):
        model = Model(path, Ops())
        memory = model.new_memory()
        model.decode(Batch.of(range(1, 21)), memory)
        memory.seq_add(0, 0, -1, delta)
        found.append(model.decode(Batch.of([42], start=20 + delta), memory))
    still, moved = found
    assert np.abs(still - moved).max() < 2e-6 * np.abs(still).max()
