"""A checkpoint whose tensors are rounded to the types that a GGUF file stores them in.

Runs of both then work on the same weights, so what differs is no rounding of weights.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

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
WEIGHTS = "model.safetensors"


def narrower_types(checkpoint: OriginalCheckpoint, file: GgufFile) -> dict[str, str]:
    """Return the tensors of the checkpoint that the file stores in F16 or BF16, and not as they
    are: name and type. Raises InvalidModel, Unsupported."""
    architecture = architecture_of(checkpoint.config)
    config = OriginalConfig(flatten_config(checkpoint.config), architecture.defaults)
    plan, found = plan_tensors(checkpoint, architecture, config), {}
    for name, expected in plan.wanted.items():
        kind = file.tensors[name].type.name if name in file.tensors else ""
        for original, stored in zip(expected.originals, expected.stored, strict=True):
            if kind in ("F16", "BF16") and stored.kind != kind:
                found[original] = kind
    return found


@contextmanager
def with_types(checkpoint: OriginalCheckpoint, types: Mapping[str, str]) -> Iterator[Path]:
    """Yield a folder with the checkpoint, these tensors rounded; its own if there are none.

    Raises OSError, and Unsupported for numbers of another type.
    """
    if not types:
        yield checkpoint.folder
        return
    with TemporaryDirectory(prefix="lockstep-original-") as name:
        folder = Path(name)
        shards = {path.name for path in checkpoint.shards()}
        for path in checkpoint.folder.iterdir():
            if path.name not in (*shards, INDEX):
                (folder / path.name).symlink_to(path.resolve())
        with (folder / WEIGHTS).open("wb") as out:
            write_tensors(out, checkpoint.tensors, types)
        yield folder


def write_tensors(
    out: BinaryIO, tensors: Mapping[str, StoredTensor], types: Mapping[str, str]
) -> None:
    header, end = {}, 0
    for name, stored in tensors.items():
        kind = types.get(name, stored.kind)
        start, end = end, end + SIZES.get(kind, 0) * int(np.prod(stored.shape, dtype=np.int64))
        header[name] = {"dtype": kind, "shape": stored.shape, "data_offsets": [start, end]}
    text = json.dumps({**header, "__metadata__": {"format": "pt"}}).encode()
    text += b" " * (-len(text) % 8)
    out.write(struct.pack("<Q", len(text)) + text)
    for name, stored in tensors.items():
        flat = stored.array.reshape(-1)
        for start in range(0, flat.size, CHUNK):
            part = flat[start : start + CHUNK]
            same = types.get(name, stored.kind) == stored.kind
            out.write(part.tobytes() if same else round_values(stored.values(part), types[name]))
        stored.release()


def round_values(values: F32, kind: str) -> bytes:
    """Return the bytes of the nearest numbers of a type."""
    with np.errstate(over="ignore"):
        halves = values.astype("<f2") if kind == "F16" else round_to_bf16(values)
    return halves.tobytes()
