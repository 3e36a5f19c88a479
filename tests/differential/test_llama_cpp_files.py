"""The oracle's adapter: its handling of files, and its description of itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.engine.batch import Batch
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.records import (
    DEFAULT,
    EXACT,
    Rejected,
    Request,
    Unanswerable,
)
from lockstep.harness.shadow.models import make_variant, open_for_variants
from lockstep.harness.synth.any_arch import variant_named
from lockstep.harness.synth.llama import LlamaRecipe
from tests.differential.test_llama_cpp_adapter import RUNNER, model_named, value
from tests.models import with_metadata

pytest.importorskip("llama_cpp", reason="llama_cpp is missing: llama.cpp's files were not asked")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def stories(directory: Path) -> Iterator[Session]:
    with RUNNER.open("llama.cpp", model_named("stories", directory), EXACT) as session:
        yield session


@pytest.mark.parametrize("damage", ["cut", "magic", "empty", "missing"])
def test_invalid_model_is_rejected_in_llama_cpps_words(damage: str, directory: Path) -> None:
    raw = model_named("f32", directory).read_bytes()
    damaged = {"cut": raw[:1000], "magic": b"GGML" + raw[4:], "empty": b""}
    words = {"cut": "failed to read", "magic": "invalid magic", "empty": "failed to read magic"}
    path = directory / f"{damage}-damaged.gguf"
    if damage in damaged:
        path.write_bytes(damaged[damage])
    with RUNNER.open("llama.cpp", path, DEFAULT) as session:
        for question in (("metadata",), ("greedy", [1], 1), ("tokenize", [b"a"])):
            outcome = session.ask(*question)
            assert isinstance(outcome, Rejected)
            assert words.get(damage, "No such file") in outcome.message


def test_llama_cpps_version_and_cpu_features_are_described(stories: Session) -> None:
    info = value(stories.ask("describe"))
    assert info.version.startswith("llama-cpp-python 0.")
    assert "CPU :" in info.build
    assert info.settings == EXACT


def test_a_model_without_logits_has_no_next_token(tmp_path: Path) -> None:
    """llama.cpp returns zeros as logits of a BERT, whose greedy token would be token 0."""
    variant = variant_named("bert")
    with open_for_variants() as session:
        make_variant(variant, tmp_path / "bert.gguf", seed=0, quant="F32", session=session)
    with Runner().open("llama.cpp", tmp_path / "bert.gguf", EXACT) as session:
        for question, args in (
            ("greedy", ([1, 2, 3], 2)),
            ("evaluate", (Request(batches=(Batch.of([1, 2, 3]),)),)),
        ):
            outcome = session.ask(question, *args)
            assert isinstance(outcome, Unanswerable)
            assert "the model (bert) has no logits" in outcome.message


def test_unknown_architecture_is_not_a_refusal(
    tmp_path: Path,
) -> None:
    """A refusal would make an older version diverge from a version that knows the architecture."""
    arch = ("STR", "transistor")
    path = with_metadata(tmp_path / "arch.gguf", LlamaRecipe(), general__architecture=arch)
    with RUNNER.open("llama.cpp", path, EXACT) as session:
        outcome = session.ask("greedy", [1, 2], 2)
    assert isinstance(outcome, Unanswerable)
    assert "unknown model architecture: 'transistor'" in outcome.message
