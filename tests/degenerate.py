"""Models whose numbers are zero, negative, NaN, infinite, huge or subnormal, by name."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.models import with_metadata

FACTORS = {
    "zero": 0.0,
    "negative": -1.0,
    "nan": np.nan,
    "infinite": np.inf,
    "huge": 1e38,
    "large": 1e20,
    "subnormal": 1e-40,
}
TENSORS = (
    *("token_embd.weight", "output.weight", "output_norm.weight", "blk.0.attn_norm.weight"),
    *("blk.1.attn_k.weight", "blk.0.attn_v.weight", "blk.1.ffn_gate.weight"),
)
KEYS: dict[str, tuple[Any, ...]] = {
    "llama.attention.layer_norm_rms_epsilon": (0.0, -1.0, np.nan, np.inf, 1e30, 1e-42),
    "llama.rope.freq_base": (0.0, -1.0, np.nan, np.inf, 1e30, 1e-30, 1e-42, 1.0),
    "llama.rope.scaling.factor": (0.0, -1.0, np.nan, np.inf, 1e-42, 1e30),
    "llama.attention.head_count": (0, 1, 64, 3),
}


def scaled(
    tensor: str,
    factor: float,
    path: Path,
    rows: slice = slice(None),
    add: float = 0.0,
    n_layer: int = 2,
) -> None:
    """Write a copy of an F32 model with some rows of one tensor scaled and shifted."""
    write_llama(LlamaRecipe(n_layer=n_layer), path)
    with GgufFile.open(path) as file:
        info, at = file.tensors[tensor], file.data_offset + file.tensors[tensor].offset
    raw = bytearray(path.read_bytes())
    values = np.frombuffer(raw, "<f4", int(np.prod(info.ne)), at).reshape(-1, info.ne[0]).copy()
    with np.errstate(all="ignore"):
        values[rows] = (values[rows] * np.float64(factor) + add).astype("<f4")
    raw[at : at + values.nbytes] = values.astype("<f4").tobytes()
    path.write_bytes(raw)


def keyed(key: str, value: float, path: Path) -> None:
    typed = ("U32" if isinstance(value, int) else "F32", value)
    with_metadata(path, LlamaRecipe(n_layer=2), **{key.replace(".", "__"): typed})


def cases() -> dict[str, Callable[[Path], None]]:
    found: dict[str, Callable[[Path], None]] = {}
    for tensor in TENSORS:
        for name, factor in FACTORS.items():
            found[f"{tensor}-{name}"] = partial(scaled, tensor, factor)
    for name in ("nan", "infinite", "zero"):
        row = partial(scaled, "blk.1.ffn_down.weight", FACTORS[name], rows=slice(3, 4))
        found[f"one-row-{name}"] = row
        embedding = partial(scaled, "token_embd.weight", FACTORS[name], rows=slice(0, 200))
        found[f"some-tokens-{name}"] = embedding
    for key, values in KEYS.items():
        for value in values:
            found[f"{key}-{value}"] = partial(keyed, key, value)
    return found
