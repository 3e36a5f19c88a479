"""llama.cpp names the tensors of every architecture, and loads what is made of them."""

from pathlib import Path

import pytest

from engine.batch import Batch
from engine.errors import EngineError
from harness.records import EXACT, Answered, Rejected, Request
from harness.runner import Runner
from harness.shadow.models import make_variant, opened
from harness.synth.any_arch import Variant, metadata_bytes, variant_named, variants
from tests.test_any_arch import TENSORS


def test_llama_cpp_names_the_tensors_of_every_variant() -> None:
    with opened() as session:
        for variant in variants().values():
            outcome = session.ask("name_tensors", metadata_bytes(variant))
            assert isinstance(outcome, Answered), (variant.name, outcome)
            names = [tensor.name for tensor in outcome.value]
            assert len(set(names)) == len(names) > len(TENSORS)
            assert not variant.moe or any("_exps" in name for name in names), variant.name


@pytest.mark.parametrize(
    ("name", "quant"),
    [("mamba", "F32"), ("qwen3", "Q8_0"), ("deepseek4", "F32"), ("gemma3", "F16")],
)
def test_a_variant_runs(name: str, quant: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with opened() as session:
        make_variant(variant_named(name), path, quant=quant, session=session)
    with Runner().open("llama.cpp", path, EXACT) as engine:
        outcome = engine.ask("evaluate", Request(batches=(Batch.of([1, 2, 3]), Batch.of([4], 3))))
    assert isinstance(outcome, Answered), outcome
    assert [logits.shape[0] for logits in outcome.value.logits] == [3, 1]
    assert all(abs(logits).max() > 0 for logits in outcome.value.logits)


def test_metadata_that_llama_cpp_refuses_is_its_refusal(tmp_path: Path) -> None:
    with opened() as session:
        bad = session.ask("name_tensors", b"no file at all")
        assert isinstance(bad, Rejected)
        assert "GGUF" in bad.message
        with pytest.raises(EngineError, match="gptj"):
            make_variant(Variant(arch="gptj", moe=False), tmp_path / "x.gguf", session=session)
