"""LoRA files in GGUF: pairs of low-rank matrices that are added to matrices of a model.

A pair changes y = W x into y = W x + scale * B (A x). The names, the shapes and the scale are those
that src/llama-adapter.cpp of llama-cpp-python 0.3.36 reads.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.engine.adapters.factors import float32_factor
from lockstep.engine.errors import EngineError, InvalidModel
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.hparams import architecture_name
from lockstep.engine.weights import Weight, Weights

A, B = ".lora_a", ".lora_b"
UNUSED = "_norm.weight"  # suffix of tensors that llama.cpp skips
LOOKED_UP = "token_embd.weight"
ALPHA = "adapter.lora.alpha"
KINDS = {"general.type": "adapter", "adapter.type": "lora"}


@dataclass(frozen=True, eq=False)
class LowRank:
    """A pair of matrices. a: (rank, inputs), b: (outputs, rank); for experts, stacks of such
    matrices. For an embedding, whose rows are looked up, a: (vocabulary, rank), b: (width, rank).
    """

    a: Weight
    b: Weight
    scale: float


class Lora:
    """The pairs of all files, by the tensor that they change."""

    def __init__(self, files: Sequence[tuple[Path, float]], model: GgufFile) -> None:
        """Open LoRA files, each with its scale. Raises EngineError or OSError."""
        self.files: list[GgufFile] = []
        self.multiplied: dict[str, list[LowRank]] = defaultdict(list)
        self.looked_up: dict[str, list[LowRank]] = defaultdict(list)
        for path, scale in files:
            try:
                self.files.append(GgufFile.open(path))
                pairs = dict(read_pairs(self.files[-1], scale, model))
            except EngineError as error:
                raise InvalidModel(f"adapter {path.name}: {error}") from error
            for name, pair in pairs.items():
                (self.looked_up if name == LOOKED_UP else self.multiplied)[name].append(pair)

    def close(self) -> None:
        for file in self.files:
            file.close()


def read_pairs(file: GgufFile, scale: float, model: GgufFile) -> Iterator[tuple[str, LowRank]]:
    """Yield names and pairs. Raises InvalidModel if the file is not a LoRA for this model."""
    for key, wanted in KINDS.items():
        if text_of(file.metadata, key) != wanted:
            raise InvalidModel(f"{key} is {text_of(file.metadata, key)!r:.80}, expected {wanted!r}")
    theirs, ours = architecture_name(file.metadata), architecture_name(model.metadata)
    if theirs != ours:
        raise InvalidModel(f"it is for the architecture {theirs!r}, but the model is {ours!r}")
    alpha, weights = alpha_of(file.metadata), Weights(file)
    for name in changed_tensors(file):
        a, b = (weights.tensor(name + end, shape_of(file, name + end)) for end in (A, B))
        check_shapes(name, a.shape, b.shape, model)
        factor, words = scale, "the scale"
        if alpha:
            factor, words = scale * alpha / b.shape[-1], "scale * alpha / rank"
        yield name, LowRank(a, b, float(float32_factor(factor, words)))


def changed_tensors(file: GgufFile) -> list[str]:
    """Return the names of the model's tensors that have a pair."""
    found = []
    for name in file.tensors:
        if name.endswith((A, B)):
            found.append(name.removesuffix(A).removesuffix(B))
        elif not name.endswith(UNUSED):
            raise InvalidModel(f"tensor {name!r}: expected a name that ends with {A} or {B}")
    if not found:
        raise InvalidModel("it has no pair of matrices")
    return list(dict.fromkeys(found))


def shape_of(file: GgufFile, name: str) -> tuple[int, ...]:
    if name not in file.tensors:
        raise InvalidModel(
            f"tensor {name!r} is missing, but the file has the other half of the pair"
        )
    return file.tensors[name].shape


def check_shapes(name: str, a: tuple[int, ...], b: tuple[int, ...], model: GgufFile) -> None:
    """Check that the product B A has the shape of the model's tensor. Raises InvalidModel."""
    info = model.tensors.get(name)
    if info is None:
        raise InvalidModel(f"it changes {name!r}, which the model does not have")
    if len(a) < 2 or len(a) != len(b) or 0 in (*a, *b):
        raise InvalidModel(f"{name}: A has shape {a} and B {b}, expected two matrices")
    if name == LOOKED_UP:
        fits = (a[0], b[0]) == info.shape and a[1] == b[1]
    else:
        fits = (*a[:-2], b[-2], a[-1]) == info.shape and a[-2] == b[-1] and a[:-2] == b[:-2]
    if not fits:
        raise InvalidModel(f"{name}: A has shape {a} and B {b}, the model's tensor {info.shape}")


def alpha_of(metadata: Mapping[str, Any]) -> float:
    """Return alpha, or 0 if the file has none. With 0, only the scale multiplies the product."""
    found = metadata.get(ALPHA)
    if found is None:
        return 0.0
    if type(found.data) is not float or not np.isfinite(found.data):
        raise InvalidModel(f"{ALPHA} is {found.data!r:.80}, expected a finite float32")
    return found.data


def text_of(metadata: Mapping[str, Any], key: str) -> str:
    return str(metadata[key].data) if key in metadata else ""
