"""Seeded models of every type that llama.cpp can multiply by, as small as the sizes of blocks
allow."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32, NO_PRODUCT, WeightFormat
from lockstep.engine.registry import import_members
from lockstep.harness.synth.llama import LlamaRecipe, write_llama

import_members("lockstep.engine.quants")
FORMATS = sorted(WeightFormat.family.values(), key=lambda kind: kind.type_id)
WITHOUT_PRODUCT = [kind for kind in FORMATS if kind.vec_dot_type == NO_PRODUCT]
MATRICES = [kind for kind in FORMATS if kind not in WITHOUT_PRODUCT]
NAMES = [kind.name for kind in MATRICES]
ROUNDING = [kind.name for kind in MATRICES if kind.vec_dot_type != "F32"]
EXPERTS = {"n_expert": 3, "n_expert_used": 2}


def recipe_of(type_name: str, **changes: Any) -> LlamaRecipe:
    """Return a recipe with rows of at least 64 weights, in whole blocks."""
    width = max(64, WeightFormat.member(type_name).weights)
    known = {"seed": 31, "n_layer": 1, "n_embd": width, "n_ff": 2 * width, "n_vocab": 320}
    return LlamaRecipe(quant=type_name, n_head=2, n_head_kv=1, **(known | changes))


def model_of(type_name: str, folder: Path, **changes: Any) -> Path:
    label = "-".join(f"{key}{value}" for key, value in changes.items())
    path = folder / f"{type_name}{label}.gguf"
    if not path.exists():
        write_llama(recipe_of(type_name, **changes), path)
    return path


def differences(a: F32, b: F32) -> NDArray[np.intp]:
    """Return the indices of elements that differ bit for bit; all NaN are equal, and -0.0 is not
    0.0."""
    return np.flatnonzero((a.view(np.uint32) != b.view(np.uint32)) & ~(np.isnan(a) & np.isnan(b)))


def same(a: F32, b: F32) -> bool:
    return a.shape == b.shape and not differences(a, b).size


def relative_rms(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    wide = expected.astype(np.float64)
    return float(np.sqrt(np.mean((actual - wide) ** 2) / np.mean(wide**2)))
