"""Keys that let a short text show the effects of a long text."""

import math
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.gguf.split_files import open_model
from lockstep.harness.blackbox.long_texts import only_in_long
from lockstep.harness.blackbox.rewriting import rewrite
from lockstep.harness.blackbox.slices import first_layers
from lockstep.harness.catalogue.models import model_for, with_long_factors
from lockstep.harness.synth.llama import LlamaRecipe, write_llama


@pytest.fixture(scope="module")
def phi3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("factors")
    with_long_factors(model_for("arch:phi3", folder), folder / "phi3.gguf", 4096)
    return folder / "phi3.gguf"


def test_factor_of_rotated_elements_follows_from_both_context_lengths(
    phi3: Path,
) -> None:
    """An engine may compute the attention factor from the context lengths, or read it from the
    file."""
    with open_model(phi3) as file:
        found = next(each for each in only_in_long(file) if each.of_cells)
    keys = {key.removeprefix("phi3."): value[1] for key, value in found.short.items()}
    longer = keys["context_length"] / keys["rope.scaling.original_context_length"]
    expected = math.sqrt(1 + math.log(longer) / math.log(4))
    assert keys["rope.scaling.attn_factor"] == pytest.approx(expected)


@pytest.mark.parametrize(("original", "context"), [(1, 128), (2, (1 << 32) - 1), (5, 3)])
def test_absurd_context_lengths_cause_no_defect(
    original: int, context: int, phi3: Path, tmp_path: Path
) -> None:
    lengths = {"context_length": context, "rope.scaling.original_context_length": original}
    with open_model(phi3) as file:
        keys = {f"phi3.{key}": ("U32", n) for key, n in lengths.items()}
        rewrite(file, first_layers(file, 1, keys), tmp_path / "odd.gguf")
    with open_model(tmp_path / "odd.gguf") as file:
        found = next(each for each in only_in_long(file) if each.of_cells)
        rewrite(file, first_layers(file, 1, found.short), tmp_path / "short.gguf")


@pytest.mark.parametrize(
    "value", [("STR", "x"), ("ARR[U32]", []), ("U8", 200), ("F32", 4096.0), ("I32", -1)], ids=str
)
@pytest.mark.parametrize("key", ["attention.sliding_window", "attention.temperature_length"])
def test_invalid_token_count_key_is_ignored(
    key: str, value: tuple[str, Any], tmp_path: Path
) -> None:
    """llama.cpp ignores the key in a llama model, and loads the model."""
    write_llama(LlamaRecipe(), tmp_path / "llama.gguf")
    with open_model(tmp_path / "llama.gguf") as file:
        rewrite(file, first_layers(file, 1, {f"llama.{key}": value}), tmp_path / "odd.gguf")
    with open_model(tmp_path / "odd.gguf") as file:
        assert list(only_in_long(file)) == []
