"""Models that show a mistake: a built-in model, or a model of any architecture and weight type."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.gguf.types import type_by_name
from lockstep.engine.quants.base import WeightFormat
from lockstep.engine.registry import import_members
from lockstep.harness.blackbox.long_texts import LONGER, growth_of_rotations
from lockstep.harness.runs.run import builtin_model
from lockstep.harness.shadow.models import make_variant, open_for_variants
from lockstep.harness.synth.any_arch import Variant, variant_named
from lockstep.harness.synth.builtin import BUILTIN, BUILTIN_VOCABULARIES
from lockstep.harness.synth.gguf_writer import Tensor, write_gguf
from lockstep.harness.synth.llama import LlamaRecipe, write_llama

ARCH, OWN = "arch:", "arch:llama:"
Rows = NDArray[Any]  # the blocks of a matrix by row


def lowest_bytes(rows: Rows) -> None:
    rows["qs"][..., ::8] = -128


MOE_TYPES = ("F16", "BF16", "Q4_0", "Q5_1")  # in addition to the built-in F32 and Q8_0

# recipe, name of a matrix, function that changes this matrix
SPECIAL: Mapping[str, tuple[LlamaRecipe, str, Callable[[Rows], None] | None]] = MappingProxyType(
    {
        # the first and the last token are the most likely
        "few-tokens": (LlamaRecipe(seed=1, n_vocab=3, vocabulary=False), "", None),
        "lowest-bytes": (BUILTIN["q8_0"], "", lowest_bytes),
        **{f"moe-{q.lower()}": (replace(BUILTIN["moe"], quant=q), "", None) for q in MOE_TYPES},
        "yarn": (LlamaRecipe(seed=8, n_ctx_train=256, rope_yarn_factor=4.0), "", None),
        "five-layers": (LlamaRecipe(seed=12, n_layer=5), "", None),
        "aligned": (LlamaRecipe(seed=14, alignment=4096), "", None),
        "five-layers-q4_1": (LlamaRecipe(seed=13, n_layer=5, quant="Q4_1"), "", None),
    }
)
# models of `synth` with other keys, for scaling of positions and for weights of experts
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
        # like V2-Lite: a softmax over all experts, whose shares are not normalised after the choice
        "deepseek2-lite": (
            "deepseek2",
            {"expert_gating_func": ("U32", 1), "expert_weights_norm": ("BOOL", False)},
        ),
        "bert-mean": ("bert", {"pooling_type": ("U32", 1)}),
        "bert-cls": ("bert", {"pooling_type": ("U32", 2)}),
        "gemma3-scaled": ("gemma3", {"rope.scaling.factor": ("F32", 8.0)}),
    }
)
# original contexts in tokens of phi3 models with two sets of factors, like Phi-3's with 128k; each
# run's context is longer than the first and shorter than the second
ORIGINAL_CONTEXTS: Mapping[str, int] = MappingProxyType(
    {"phi3-long-factors": 4, "phi3-short-factors": 4096}
)
# models of `synth` with four layers instead of two
DEEPER: Mapping[str, str] = MappingProxyType(
    {"qwen2-deeper": "qwen2", "qwen3-deeper": "qwen3", "gpt2-deeper": "gpt2"}
)
FOUR = (("n_layer", 4),)
LLAMA = "llama"  # architecture of models whose name does not contain another
ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {
        **{name: arch for name, (arch, _) in WITH_KEYS.items()},
        **dict.fromkeys(ORIGINAL_CONTEXTS, "phi3"),
        **DEEPER,
    }
)


def architecture_of(shows_on: str) -> str:
    """Return the architecture of the model that shows a mistake."""
    if not shows_on.startswith(ARCH):
        return ARCHITECTURES.get(shows_on, LLAMA)
    return shows_on.removeprefix(ARCH).partition(":")[0]


def model_for(shows_on: str, folder: Path) -> Path:
    """Write the model that shows a mistake into the folder, unless it is there, and return its
    path."""
    path = folder / f"{shows_on.replace(':', '-')}.gguf"
    if path.exists():
        return path
    if shows_on in BUILTIN:
        return builtin_model(shows_on, folder)
    if shows_on in SPECIAL:
        recipe, tensor, change = SPECIAL[shows_on]
        write_llama(recipe, path)
        if change:
            rewrite(path, tensor, change)
    elif shows_on in WITH_KEYS:
        arch, keys = WITH_KEYS[shows_on]
        with_keys(model_for(ARCH + arch, folder), path, {f"{arch}.{k}": keys[k] for k in keys})
    elif shows_on in ORIGINAL_CONTEXTS:
        original = ORIGINAL_CONTEXTS[shows_on]
        with_long_factors(model_for(ARCH + "phi3", folder), path, original)
    elif shows_on.startswith(OWN):
        write_llama(long_rows(shows_on.removeprefix(OWN)), path)
    elif shows_on in DEEPER or shows_on.startswith(ARCH):
        with open_for_variants() as session:
            make_variant(variant_of(shows_on), path, session=session)
    else:
        write_llama(BUILTIN_VOCABULARIES[shows_on], path)
    return path


def variant_of(shows_on: str) -> Variant:
    if shows_on in DEEPER:
        return replace(variant_named(DEEPER[shows_on]), sizes=FOUR)
    return variant_named(shows_on.removeprefix(ARCH))


def long_rows(quant: str) -> LlamaRecipe:
    """Return the recipe of a llama model whose rows are whole blocks, several blocks if they are
    short."""
    width = 256 if type_by_name(quant).block > 64 else 96
    return LlamaRecipe(seed=11, quant=quant, n_embd=width, n_ff=width)


def rewrite(path: Path, tensor: str, change: Callable[[Rows], None]) -> None:
    """Rewrite the blocks of one tensor, or of every matrix with blocks."""
    import_members("lockstep.engine.quants")
    with GgufFile.open(path) as file:
        found = [
            (file.data_offset + info.offset, info)
            for info in file.tensors.values()
            if info.name == tensor or (not tensor and info.type.block > 1)
        ]
    for offset, info in found:
        layout = WeightFormat.member(info.type.name).layout
        rows = np.memmap(path, layout, "r+", offset, (info.n_bytes // layout.itemsize,))
        change(rows.reshape(info.shape[0], -1))
        rows.flush()


def with_keys(
    made: Path, path: Path, keys: Mapping[str, tuple[str, Any]], more: Sequence[Tensor] = ()
) -> None:
    """Write a copy of a model with changed metadata. `more` are additional tensors."""
    with GgufFile.open(made) as file:
        every = file.tensors.values()
        rows = [(t.name, t.ne, t.type.name, [file.raw(t.name).tobytes()]) for t in every]
        write_gguf(path, {**file.metadata, **keys}, [*rows, *more])


def with_long_factors(made: Path, path: Path, original: int) -> None:
    """Write a phi3 model whose rotation covers three quarters of each head, as in Phi-4-mini. Its
    context is LONGER times as long as its original context."""
    with GgufFile.open(made) as file:
        width, heads = (
            int(file.metadata[f"phi3.{key}"].data)
            for key in ("embedding_length", "attention.head_count")
        )
    pairs = width // heads * 3 // 8
    keys = {
        "phi3.rope.dimension_count": ("U32", 2 * pairs),
        "phi3.context_length": ("U32", LONGER * original),
        "phi3.rope.scaling.original_context_length": ("U32", original),
        "phi3.rope.scaling.attn_factor": ("F32", growth_of_rotations(LONGER, original)),
    }
    grows = {"short": 1 / 64, "long": 3 / 8}
    factors = {name: np.arange(pairs, dtype="<f4") * step + 1 for name, step in grows.items()}
    more = [
        (f"rope_factors_{name}.weight", (pairs,), "F32", [values.tobytes()])
        for name, values in factors.items()
    ]
    with_keys(made, path, keys, more)
