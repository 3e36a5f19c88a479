"""Writes a model with LoRA files added to its weights. The changed weights become F32."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lockstep.engine.adapters.lora import Lora, LowRank
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.weights import Weights
from lockstep.harness.synth.gguf_writer import Tensor, write_gguf

SPLIT = "split."  # prefix of the keys of split models; the merged model is one file


def write_merged(model: Path, loras: Sequence[tuple[Path, float]], path: Path) -> None:
    """Write a model with merged adapters. `loras` are files with their scales. Only one tensor is
    in memory at a time. Raises EngineError or OSError."""
    with open_model(model) as file:
        lora = Lora(loras, file)
        try:
            keys = {k: v for k, v in file.metadata.items() if not k.startswith(SPLIT)}
            write_gguf(path, keys, list(merged_tensors(file, lora)), alignment=file.alignment)
        finally:
            lora.close()


def merged_tensors(file: GgufFile, lora: Lora) -> Iterator[Tensor]:
    weights = Weights(file)
    for name, info in file.tensors.items():
        pairs = [*lora.multiplied.get(name, ()), *lora.looked_up.get(name, ())]
        kind = "F32" if pairs else info.type.name
        yield name, info.ne, kind, chunks(weights, name, info.shape, pairs)


def chunks(
    weights: Weights, name: str, shape: tuple[int, ...], pairs: Sequence[LowRank]
) -> Iterator[bytes]:
    if not pairs:
        yield weights.file.raw(name).tobytes()
        return
    total = weights.tensor(name, shape).values().astype(np.float64)
    for pair in pairs:
        a, b = pair.a.values().astype(np.float64), pair.b.values().astype(np.float64)
        # for an embedding, A has a row for each token
        total += pair.scale * (b @ a if a.shape[-1] == shape[-1] else a @ b.T)
    yield total.astype(np.float32).tobytes()
