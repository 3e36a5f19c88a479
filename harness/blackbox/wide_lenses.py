"""Lenses wider than the user's model, for types whose blocks are longer than the model's rows.

Some matrices have longer rows. For example, Qwen2.5 0.5B in Q4_K_M has the width 896, and only its
ffn_down has blocks of 256. The layers of a lens add nothing, so layers of another width are easy to
make. They have one head as wide as the lens, because llama.cpp takes some shapes from the heads and
some from the width.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.blackbox.in_place import ARCHITECTURES, MATRICES, NORMS, NORMS_BESIDE
from lockstep.harness.blackbox.lens import BLOCK, LARGEST_STEP, SIZE, Lens
from lockstep.harness.blackbox.parts import EMBEDDING, OUTPUT, OUTPUT_NORM, OUTPUT_SCALE
from lockstep.harness.blackbox.rewriting import Recipe, zeros
from lockstep.harness.blackbox.slices import architecture, first_layers
from lockstep.harness.sites import IN_A_LAYER
from lockstep.harness.synth.gguf_writer import Tensor, Typed

ROPE_FREQS = "rope_freqs.weight"
WIDTHS = (
    *("embedding_length", "attention.key_length", "attention.value_length"),
    "rope.dimension_count",
)


def width_of(file: GgufFile, block: int) -> int:
    """Return the smallest multiple of the block that is at least the model's width; 0 if the shapes
    of a layer of that width are unknown."""
    stems = {m[2].rpartition(".")[0] for m in map(IN_A_LAYER.fullmatch, file.tensors) if m}
    if architecture(file) not in ARCHITECTURES or stems - {*MATRICES, *NORMS, *NORMS_BESIDE}:
        return 0
    width = file.tensors[EMBEDDING].ne[0]
    return -(-width // block) * block


def is_wide(file: GgufFile, lens: Lens) -> bool:
    return lens.width != file.tensors[EMBEDDING].ne[0]


def recipe_of(file: GgufFile, lens: Lens, head: Tensor) -> Recipe:
    """Return the recipe of a wide lens: new tensors in F32, and the vocabulary and keys of the
    file."""
    recipe, made = first_layers(file, lens.layers), [head, embeddings(lens)]
    kept = {}
    for name in recipe.names:
        inside = IN_A_LAYER.fullmatch(name)
        if name == OUTPUT_NORM:
            made.append(of_ones(name, lens.width, LARGEST_STEP / lens.period**0.5))
        elif inside and name.endswith((".weight", ".bias")):
            made.append(of_layer(name, file.tensors[name].ne, lens.width))
        elif name == ROPE_FREQS:
            made.append(of_ones(name, lens.width // 2))
        elif name == OUTPUT_SCALE:
            made.append(of_ones(name, 1))
        elif name not in (EMBEDDING, OUTPUT):
            kept[name] = name
    arch, ones = architecture(file), ("head_count", "head_count_kv")
    keys: dict[str, Typed] = {f"{arch}.attention.{key}": ("U32", 1) for key in ones}
    keys |= {f"{arch}.{key}": ("U32", lens.width) for key in WIDTHS}
    return Recipe(names=kept, keys={**recipe.keys, **keys}, stored=recipe.stored, more=made)


def of_layer(name: str, ne: Sequence[int], width: int) -> Tensor:
    stem, end = name.split(".")[-2:]
    if stem not in MATRICES:
        return of_ones(name, width)
    read = ne[0] if stem == "ffn_down" else width
    written = ne[-1] if stem in ("ffn_up", "ffn_gate") else width
    ne = (written,) if end == "bias" else (read, written)
    return name, ne, "F32", zeros(ne)


def of_ones(name: str, width: int, value: float = 1.0) -> Tensor:
    return name, (width,), "F32", [np.full(width, value, "<f4").tobytes()]


def embeddings(lens: Lens) -> Tensor:
    def chunks() -> Iterator[bytes]:
        last = lens.uneven.stop
        for start in range(0, last, BLOCK):
            some = lens.embeddings(start, min(start + BLOCK, last))
            yield (SIZE * some).astype("<f4").tobytes()
        yield from zeros((lens.width, lens.vocabulary - last))

    return EMBEDDING, (lens.width, lens.vocabulary), "F32", chunks()
