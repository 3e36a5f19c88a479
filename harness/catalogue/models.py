"""The model that shows a mistake: a built-in one, or one of any architecture and type."""

from dataclasses import replace
from pathlib import Path

from engine.ggml_types import type_by_name
from harness.run import builtin_model
from harness.shadow.models import make_variant, opened
from harness.synth.any_arch import variant_named
from harness.synth.builtin import BUILTIN_VOCABULARIES
from harness.synth.llama import write_llama

ARCH = "arch:"
LONG = (("n_embd", 256), ("n_head", 4), ("n_ff", 256))  # rows of whole blocks of 256


def model_for(shows_on: str, folder: Path) -> Path:
    """Written once into the folder."""
    path = folder / f"{shows_on.replace(':', '-')}.gguf"
    if path.exists():
        return path
    if shows_on in BUILTIN_VOCABULARIES:
        write_llama(BUILTIN_VOCABULARIES[shows_on], path)
        return path
    if not shows_on.startswith(ARCH):
        return builtin_model(shows_on, folder)
    name, _, quant = shows_on.removeprefix(ARCH).partition(":")
    variant = variant_named(name)
    if type_by_name(quant or "F32").block > 64:
        variant = replace(variant, sizes=LONG)
    with opened() as session:
        make_variant(variant, path, quant=quant or "F32", session=session)
    return path
