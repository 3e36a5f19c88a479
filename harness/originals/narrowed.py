"""A checkpoint whose tensors are rounded and padded as in a GGUF file.

Then the runs of the checkpoint and of the file use the same weights, so their differences do not
come from rounded weights.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import F32
from lockstep.harness.originals.checkpoint import INDEX, OriginalCheckpoint, StoredTensor
from lockstep.harness.originals.compare import architecture_of, flatten_config
from lockstep.harness.originals.config import OriginalConfig
from lockstep.harness.originals.recipes import CHUNK
from lockstep.harness.originals.rounding import round_to_bf16
from lockstep.harness.originals.tensors import plan_tensors

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
WEIGHTS, CONFIG = "model.safetensors", "config.json"


@dataclass(frozen=True)
class StoredAs:
    """The data type of a tensor, and the length of its first axis. Padding rows are added or
    removed to reach this length."""

    kind: str
    n_rows: int


def stored_otherwise(
    checkpoint: OriginalCheckpoint, file: GgufFile, *, rounds: bool = True
) -> dict[str, StoredAs]:
    """Return the checkpoint's tensors that the file stores in F16 or BF16, or with another number
    of tokens. If `rounds` is False, the data type is ignored. Raises InvalidModel or
    Unsupported."""
    architecture = architecture_of(checkpoint.config)
    config = OriginalConfig(flatten_config(checkpoint.config), architecture.defaults)
    plan, found = plan_tensors(checkpoint, architecture, config), {}
    for name, expected in plan.wanted.items():
        if name not in file.tensors:
            continue
        info = file.tensors[name]
        for original, stored in zip(expected.originals, expected.stored, strict=True):
            narrower = rounds and info.type.name in ("F16", "BF16")
            kind = info.type.name if narrower else stored.kind
            padded = expected.recipe == "vocabulary"
            made = StoredAs(kind, info.shape[0] if padded else stored.shape[0])
            if made != StoredAs(stored.kind, stored.shape[0]):
                found[original] = made
    return found


@contextmanager
def with_changes(checkpoint: OriginalCheckpoint, changes: Mapping[str, StoredAs]) -> Iterator[Path]:
    """Yield a folder with the checkpoint in which these tensors are changed. Without changes, yield
    the checkpoint's own folder.

    Raises OSError, and Unsupported for other data types.
    """
    if not changes:
        yield checkpoint.folder
        return
    with TemporaryDirectory(prefix="lockstep-original-") as name:
        folder = Path(name)
        rewritten = {INDEX, CONFIG, *(path.name for path in checkpoint.shards())}
        for path in checkpoint.folder.iterdir():
            if path.name not in rewritten:
                (folder / path.name).symlink_to(path.resolve())
        config = with_vocabulary(checkpoint, changes)
        (folder / CONFIG).write_text(json.dumps(config))
        with (folder / WEIGHTS).open("wb") as out:
            write_tensors(out, checkpoint.tensors, changes)
        yield folder


def with_vocabulary(
    checkpoint: OriginalCheckpoint, changes: Mapping[str, StoredAs]
) -> dict[str, Any]:
    """Return config.json with the number of tokens in the changed tensors."""
    sizes = {
        made.n_rows
        for name, made in changes.items()
        if made.n_rows != checkpoint.tensors[name].shape[0]
    }
    if not sizes:
        return checkpoint.config
    text = checkpoint.config.get("text_config")
    size = {"vocab_size": max(sizes)}
    if isinstance(text, dict):
        return {**checkpoint.config, "text_config": {**text, **size}}
    return {**checkpoint.config, **size}


def write_tensors(
    out: BinaryIO, tensors: Mapping[str, StoredTensor], changes: Mapping[str, StoredAs]
) -> None:
    header: dict[str, dict[str, Any]] = {}
    end = 0
    for name, stored in tensors.items():
        kind, shape = stored.kind, stored.shape
        if name in changes:
            kind, shape = changes[name].kind, (changes[name].n_rows, *shape[1:])
        start, end = end, end + SIZES.get(kind, 0) * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps({**header, "__metadata__": {"format": "pt"}}).encode()
    text += b" " * (-len(text) % 8)
    out.write(struct.pack("<Q", len(text)) + text)
    begin = out.tell()
    for name, stored in tensors.items():
        start, end = header[name]["data_offsets"]
        out.seek(begin + start)
        write_values(out, stored, header[name]["dtype"], header[name]["shape"])
        stored.release()
    out.truncate(begin + end)  # trailing zeros need no storage


def write_values(out: BinaryIO, stored: StoredTensor, kind: str, shape: tuple[int, ...]) -> None:
    flat = stored.array.reshape(-1)[: int(np.prod(shape, dtype=np.int64))]
    for start in range(0, flat.size, CHUNK):
        part = flat[start : start + CHUNK]
        same = kind == stored.kind
        out.write(part.tobytes() if same else round_values(stored.values(part), kind))


def round_values(values: F32, kind: str) -> bytes:
    """Return the values rounded to a data type, as bytes."""
    with np.errstate(over="ignore"):
        halves = values.astype("<f2") if kind == "F16" else round_to_bf16(values)
    return halves.tobytes()
