"""Files with huge numbers in the header are refused, because they lack the tensors."""

import tracemalloc
from pathlib import Path

import pytest

from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.model import architecture_of
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.harness.check.check import BadInput, Plan, preflight
from lockstep.harness.records import EXACT
from lockstep.harness.synth.llama import LlamaRecipe
from tests.models import with_metadata

SMALL = {"seed": 1, "n_layer": 1, "n_embd": 16, "n_ff": 16}
DENSE = LlamaRecipe(**SMALL)
EXPERTS = LlamaRecipe(**SMALL, n_expert=4, n_expert_used=2)
MOST = {"U32": 2**32 - 1, "U64": 2**64 - 1, "I64": 2**63 - 1}
SIZES = (
    *("block_count", "embedding_length", "feed_forward_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length"),
    *("attention.value_length", "rope.dimension_count", "expert_count", "expert_used_count"),
)
HARMLESS = ("context_length",)  # nothing is allocated with the trained context's size
TOKENS = ("bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id")


def file_with(folder: Path, recipe: LlamaRecipe, key: str, kind: str) -> Path:
    return with_metadata(folder / "huge.gguf", recipe, **{key: (kind, MOST[kind])})


def taken(path: Path) -> int:
    """Return the peak allocation of opening the model, in bytes."""
    tracemalloc.start()
    try:
        with GgufFile.open(path) as file:
            tokenizer_of(file.metadata)
            architecture_of(file)(file)
    except EngineError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Return the peak memory for opening the right model, plus the size of its file."""
    path = with_metadata(tmp_path_factory.mktemp("models") / "honest.gguf", EXPERTS)
    taken(path)  # the first call imports and compiles
    return taken(path) + path.stat().st_size


@pytest.mark.parametrize("kind", MOST)
@pytest.mark.parametrize("key", SIZES + HARMLESS)
def test_header_number_takes_no_more_memory_than_the_file(
    tmp_path: Path, key: str, kind: str, honest: int
) -> None:
    recipe = EXPERTS if "expert" in key else DENSE
    path = file_with(tmp_path, recipe, f"llama.{key}", kind)
    assert taken(path) < honest


def test_missing_layers_take_no_memory(tmp_path: Path, honest: int) -> None:
    """A loop over 50,000 layers would take measurable memory, but would end."""
    path = with_metadata(tmp_path / "m.gguf", DENSE, llama__block_count=("U32", 50_000))
    assert taken(path) < honest


@pytest.mark.parametrize("key", TOKENS)
def test_missing_token_takes_no_more_memory_than_the_file(
    tmp_path: Path, key: str, honest: int
) -> None:
    path = file_with(tmp_path, DENSE, f"tokenizer.ggml.{key}", "U32")
    assert taken(path) < honest


@pytest.mark.parametrize("key", SIZES)
def test_model_with_absurd_number_is_refused_by_its_key(tmp_path: Path, key: str) -> None:
    recipe = EXPERTS if "expert" in key else DENSE
    path = file_with(tmp_path, recipe, f"llama.{key}", "U32")
    plan = Plan(case="huge", model=path, subject_model=path, settings=EXACT)
    with pytest.raises(BadInput, match=r"4294967295|tensor|head|must be positive"):
        preflight(plan)
