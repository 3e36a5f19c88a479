"""Cache types of an engine under test that llama.cpp and our honest runs support too."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.engine.errors import InvalidModel
from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.hparams import architecture_name
from lockstep.engine.node import PLAIN
from lockstep.engine.ops.ggml.stored import STORED
from lockstep.engine.quants.base import WeightFormat
from lockstep.harness.records import Settings

UNQUANTISED = ("F32", "F16", "BF16")  # types of values for which llama.cpp needs no flash attention


def check_heads(settings: Settings, path: Path) -> None:
    """Raise InvalidModel if the size of a head is not a multiple of the cache type's block. Heads
    of unknown size pass."""
    kinds = {"key_length": settings.type_k, "value_length": settings.type_v}
    coded = {key: kind for key, kind in kinds.items() if kind in STORED}
    if not coded:
        return
    with open_model(path) as file:
        arch = architecture_name(file.metadata)
        wide, heads = (
            number_of(file.metadata, f"{arch}.{key}")
            for key in ("embedding_length", "attention.head_count")
        )
        for key, kind in coded.items():
            size = number_of(file.metadata, f"{arch}.attention.{key}")
            size = size or (wide // heads if heads else 0)
            block = WeightFormat.member(kind).weights
            if size % block:
                text = f"a {kind} cache needs heads of a multiple of {block} elements"
                raise InvalidModel(f"{text}, and the model's have {size}")


def number_of(metadata: Mapping[str, Any], key: str) -> int:
    """Return the number of a key, or the largest number if the key has one per layer; 0 if the key
    is missing."""
    found = metadata.get(key)
    if found is None or not np.issubdtype(np.asarray(found.data).dtype, np.integer):
        return 0
    return int(np.max(found.data, initial=0))


def why_not_followed(settings: Settings) -> str:
    """Return why the oracle cannot use an engine's settings, as a clause that follows the engine's
    name; "" if it can. Without this check llama.cpp would be blamed for its refusal."""
    if unknown := sorted({settings.type_k, settings.type_v} - {*PLAIN, *STORED}):
        return (
            f"has a cache of type {unknown[0]}, which Lockstep cannot compute (known: "
            f"F32, F16, {', '.join(STORED)}); run the engine with one of these"
        )
    if settings.type_v not in UNQUANTISED and not settings.flash_attn:
        return (
            f"has a {settings.type_v} cache of values without flash attention, which "
            "llama.cpp cannot run; choose a different type, or flash attention"
        )
    return ""
