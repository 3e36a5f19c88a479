"""Files of our architectures in rarer layouts than those of synth."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.model import Model
from lockstep.engine.ops.mirror import Mirror
from lockstep.harness.asking.facts import facts_of_model
from lockstep.harness.shadow.models import make_variant, open_for_variants
from lockstep.harness.synth.any_arch import variant_named
from lockstep.harness.synth.gguf_writer import write_gguf


def logits_of(path: Path) -> NDArray[np.float32]:
    model = Model(path, Mirror())
    try:
        return model.decode(Batch.of([5, 42, 79]), model.new_memory())
    finally:
        model.close()


@pytest.fixture(scope="module")
def one_matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a deepseek2 whose queries come from one matrix."""
    path = tmp_path_factory.mktemp("deepseek2") / "model.gguf"
    variant = variant_named("deepseek2")
    with open_for_variants() as session:
        make_variant(
            replace(variant, changed=(("deepseek2.attention.q_lora_rank", 0),)),
            path,
            session=session,
        )
    return path


def rewritten(path: Path, to: Path, without: str = "", **keys: tuple[str, int]) -> Path:
    """Rewrite the file with changed keys under `deepseek2.`, and without the named tensor."""
    with GgufFile.open(path) as file:
        changed = {f"deepseek2.{key.replace('__', '.')}": value for key, value in keys.items()}
        rows = [
            (t.name, t.ne, t.type.name, file.raw(t.name).tobytes())
            for t in file.tensors.values()
            if t.name != without
        ]
        write_gguf(to, {**file.metadata, **changed}, rows)
    return to


def test_unused_query_rank_changes_no_logits(one_matrix: Path, tmp_path: Path) -> None:
    """llama.cpp ignores the stated rank in models of 27 layers."""
    said = rewritten(one_matrix, tmp_path / "said.gguf", attention__q_lora_rank=("U32", 32))
    assert np.array_equal(logits_of(said), logits_of(one_matrix))


@pytest.mark.parametrize(
    "name",
    ["blk.0.attn_q.weight", "blk.0.ffn_up.weight", "blk.1.ffn_gate_inp.weight"],
)
def test_layer_that_lacks_a_tensor_of_its_kind_is_refused_at_opening(
    name: str, one_matrix: Path, tmp_path: Path
) -> None:
    """The refusal comes at opening, not in the middle of a run."""
    broken = rewritten(one_matrix, tmp_path / "broken.gguf", without=name)
    assert f"tensor {name!r} is missing" in facts_of_model(broken).not_ours
    assert facts_of_model(one_matrix).not_ours == ""
