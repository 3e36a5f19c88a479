"""The model that shows a mistake: a built-in one, or one of any architecture and type."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engine.ggml_types import type_by_name
from engine.gguf_file import GgufFile
from harness.gguf_writer import write_gguf
from harness.run import builtin_model
from harness.shadow.models import make_variant, opened
from harness.synth.any_arch import variant_named
from harness.synth.builtin import BUILTIN_VOCABULARIES
from harness.synth.llama import LlamaRecipe, write_llama

ARCH = "arch:"
LONG = (("n_embd", 256), ("n_head", 4), ("n_ff", 256))  # rows of whole blocks of 256

RECIPES: Mapping[str, LlamaRecipe] = MappingProxyType(
    {
        **BUILTIN_VOCABULARIES,
        "yarn": LlamaRecipe(seed=8, n_ctx_train=256, rope_yarn_factor=4.0),
    }
)
# models of `synth` with other keys: what scales positions, how experts are weighed
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
        "deepseek2-lite": (  # as V2-Lite: a softmax over all, and what is chosen keeps its share
            "deepseek2",
            {"expert_gating_func": ("U32", 1), "expert_weights_norm": ("BOOL", False)},
        ),
        "gemma3-scaled": ("gemma3", {"rope.scaling.factor": ("F32", 8.0)}),
    }
)


def model_for(shows_on: str, folder: Path) -> Path:
    """Written once into the folder."""
    path = folder / f"{shows_on.replace(':', '-')}.gguf"
    if path.exists():
        return path
    if recipe := RECIPES.get(shows_on):
        write_llama(recipe, path)
        return path
    if shows_on in WITH_KEYS:
        return with_keys(shows_on, path)
    if not shows_on.startswith(ARCH):
        return builtin_model(shows_on, folder)
    name, _, quant = shows_on.removeprefix(ARCH).partition(":")
    variant = variant_named(name)
    if type_by_name(quant or "F32").block > 64:
        variant = replace(variant, sizes=LONG)
    with opened() as session:
        make_variant(variant, path, quant=quant or "F32", session=session)
    return path


def with_keys(shows_on: str, path: Path) -> Path:
    arch, keys = WITH_KEYS[shows_on]
    with GgufFile.open(model_for(ARCH + arch, path.parent)) as file:
        every = file.tensors.values()
        rows = [(t.name, t.ne, t.type.name, [file.raw(t.name).tobytes()]) for t in every]
        more = {f"{arch}.{key}": value for key, value in keys.items()}
        write_gguf(path, {**file.metadata, **more}, rows)
    return path
