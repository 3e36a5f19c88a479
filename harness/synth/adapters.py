"""Seeded adapters for a model: a LoRA file, and a control vector."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.adapters.control_vector import NAME
from lockstep.engine.adapters.lora import ALPHA, KINDS, LOOKED_UP, A, B
from lockstep.engine.errors import InvalidModel
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.hparams import Keys, architecture_name
from lockstep.harness.synth.draws import stream, uniform
from lockstep.harness.synth.gguf_writer import Tensor, Typed, write_gguf

# matrices to which llama.cpp 0.3.36 applies adapters; it ignores adapters for others
MATRICES = re.compile(
    r"output\.weight|blk\.\d+\.(?:attn_(?:q|k|v|qkv|output|q_a|q_b|kv_a_mqa|kv_b)"
    r"|ffn_(?:gate|up|down)(?:_exps|_shexp)?|ffn_gate_inp|ssm_(?:in|x|dt|out)"
    r"|shortconv\.(?:in_proj|out_proj))\.weight"
)
# share of a result's spread that the pairs add, for inputs with spread 1 and alpha = rank
SHARE = 0.5
PLAIN = {"F32": np.float32, "F16": np.float16}


@dataclass(frozen=True, kw_only=True)
class LoraRecipe:
    """The recipe of a LoRA file, which has a pair for each matrix of a model."""

    seed: int = 0
    rank: int = 4
    alpha: float | None = 8.0  # None: the file has no alpha, so only the scale counts
    quant: str = "F32"  # F32 or F16
    embedding: bool = True  # True: token_embd is adapted too, unless the head shares it
    matrices: re.Pattern[str] = MATRICES


def write_lora(recipe: LoraRecipe, model: Path, path: Path) -> None:
    """Write a LoRA file for a model. Raises EngineError or OSError if the model cannot be read."""
    with open_model(model) as file:
        keys: dict[str, Typed] = {"general.architecture": ("STR", architecture_name(file.metadata))}
        keys |= {key: ("STR", value) for key, value in KINDS.items()}
        keys |= {ALPHA: ("F32", recipe.alpha)} if recipe.alpha is not None else {}
        tensors = list(pairs_of(recipe, file))
    if not tensors:
        raise InvalidModel(f"{model}: it has no matrix that llama.cpp multiplies by with adapters")
    write_gguf(path, keys, tensors)


def pairs_of(recipe: LoraRecipe, file: GgufFile) -> Iterator[Tensor]:
    tied = "output.weight" not in file.tensors
    for name, info in file.tensors.items():
        if recipe.matrices.fullmatch(name) and len(info.shape) > 1:
            *stack, rows, columns = info.shape
            shapes = (*stack, recipe.rank, columns), (*stack, rows, recipe.rank)
        elif name == LOOKED_UP and recipe.embedding and not tied:
            rows, columns = info.shape
            shapes = (rows, recipe.rank), (columns, recipe.rank)
        else:
            continue
        of_a = 1.0 if name == LOOKED_UP else columns**-0.5
        sigmas = of_a, SHARE * recipe.rank**-0.5
        for end, shape, sigma in zip((A, B), shapes, sigmas, strict=True):
            yield tensor(recipe, name + end, shape, sigma)


def tensor(recipe: LoraRecipe, name: str, shape: tuple[int, ...], sigma: float) -> Tensor:
    return (
        name,
        shape[::-1],
        recipe.quant,
        values(recipe.seed, name, shape, sigma).astype(PLAIN[recipe.quant]),
    )


def values(seed: int, name: str, shape: tuple[int, ...], sigma: float) -> NDArray[np.float32]:
    n = int(np.prod(shape))
    return uniform(stream(seed, name), n, sigma).reshape(shape)


def write_control_vector(seed: int, model: Path, path: Path) -> None:
    """Write a direction for each layer except the first. Raises EngineError or OSError if the model
    cannot be read."""
    with open_model(model) as file:
        arch = architecture_name(file.metadata)
        keys = Keys(file.metadata, arch)
        n_layer, width = keys.positive("block_count"), keys.positive("embedding_length")
    if n_layer < 2:
        raise InvalidModel(
            f"{model}: it has one layer, but a control vector changes only later layers"
        )
    names = [f"{NAME}{layer}" for layer in range(1, n_layer)]
    write_gguf(
        path,
        {
            "general.architecture": ("STR", "controlvector"),
            "controlvector.model_hint": ("STR", arch),
            "controlvector.layer_count": ("I32", n_layer - 1),
        },
        [(name, (width,), "F32", values(seed, name, (width,), SHARE)) for name in names],
    )
