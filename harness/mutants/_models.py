"""Models that show mistakes which no built-in one shows, beside those of `synth --arch`."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engine.gguf_file import GgufFile
from harness.gguf_writer import write_gguf
from harness.shadow.models import make_variants
from harness.synth.builtin import BUILTIN
from harness.synth.llama import LlamaRecipe, write_llama

ARCH = "arch:"
RECIPES: Mapping[str, LlamaRecipe] = MappingProxyType(
    {
        **BUILTIN,
        "yarn": LlamaRecipe(seed=8, n_ctx_train=256, rope_yarn_factor=4.0),
    }
)
# architectures of `synth`, with keys that its models lack
WITH_KEYS: Mapping[str, tuple[str, Mapping[str, tuple[str, Any]]]] = MappingProxyType(
    {
        "deepseek2-yarn": (
            "deepseek2",
            {
                "rope.scaling.type": ("STR", "yarn"),
                "rope.scaling.factor": ("F32", 4.0),
                "rope.scaling.original_context_length": ("U32", 64),
                "rope.scaling.yarn_log_multiplier": ("F32", 0.1),
            },
        ),
        "gemma3-scaled": ("gemma3", {"rope.scaling.factor": ("F32", 8.0)}),
    }
)


def model_that_shows(shows_on: str, folder: Path) -> Path:
    """Written once into the folder. Raises EngineError if llama.cpp cannot name its tensors."""
    path = folder / f"{shows_on.replace(':', '-')}.gguf"
    if path.exists():
        return path
    if shows_on in RECIPES:
        write_llama(RECIPES[shows_on], path)
        return path
    arch, keys = WITH_KEYS.get(shows_on, (shows_on.removeprefix(ARCH), {}))
    (made,) = make_variants([arch], folder)
    return made if made == path else with_keys(made, path, {f"{arch}.{k}": keys[k] for k in keys})


def with_keys(made: Path, path: Path, keys: Mapping[str, tuple[str, Any]]) -> Path:
    with GgufFile.open(made) as file:
        rows = [
            (t.name, t.ne, t.type.name, [file.raw(t.name).tobytes()]) for t in file.tensors.values()
        ]
        write_gguf(path, {**file.metadata, **keys}, rows)
    return path
