"""A Hugging Face checkpoint: config.json, safetensors files, the tokenizer's JSON.

Tensors are memory-mapped, and converted to float32 a few rows at a time. Pickle files
(pytorch_model.bin) are refused, because reading them executes their code.
"""

import json
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from lockstep.engine.errors import InvalidModel, Unsupported
from lockstep.engine.gguf.regular_file import check_regular, read_regular
from lockstep.engine.quants.base import F32

MAX_CONFIG_BYTES = 1 << 24
MAX_TOKENIZER_BYTES = 1 << 28
INDEX = "model.safetensors.index.json"
STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor as stored in a safetensors file."""

    path: Path
    kind: str  # name of the type in safetensors
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file

    @cached_property
    def array(self) -> NDArray[Any]:
        """Return the numbers as stored, memory-mapped; BF16 numbers as integers. Raises Unsupported
        for other data types.

        If the file shrinks while it is open, the process ends by SIGBUS, as with any mapped file.
        """
        if self.kind not in STORED:
            raise Unsupported(f"{self.path}: a tensor of {self.kind}; known: {', '.join(STORED)}")
        dtype = np.dtype(STORED[self.kind])
        if 0 in self.shape:
            return np.zeros(self.shape, dtype)
        return np.memmap(self.path, dtype, "r", self.offset, self.shape)

    def release(self) -> None:
        """Unmap the file, so that the pages that were read are freed."""
        self.__dict__.pop("array", None)

    def values(self, part: NDArray[Any]) -> F32:
        """Return a part of the array as float32."""
        if self.kind == "BF16":
            return (part.astype(np.uint32) << 16).view(np.float32)
        return part.astype(np.float32)


class OriginalCheckpoint:
    """A checkpoint's files, which are in one folder. The constructor raises InvalidModel or OSError
    if they cannot be read."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InvalidModel(f"{folder} is not a folder; expected config.json and *.safetensors")
        self.folder = folder
        config = self.read_json("config.json")
        if not isinstance(config, dict):
            raise InvalidModel(f"{folder}: expected a config.json with an object")
        self.config: dict[str, Any] = config
        self.tensors: dict[str, StoredTensor] = {}
        for path in self.shards():
            self.add_shard(path)

    def shards(self) -> list[Path]:
        """Return the safetensors files that the index names, or all safetensors files if there is
        no index."""
        index = self.read_json(INDEX)
        if index is not None:
            names = index.get("weight_map") if isinstance(index, dict) else None
            if not isinstance(names, dict) or not all(map(is_plain_name, names.values())):
                raise InvalidModel(f"{self.folder / INDEX}: weight_map must map tensors to files")
            return [self.folder / name for name in sorted(set(names.values()))]
        # some folders hold the model a second time, in consolidated.safetensors
        names = ("model*.safetensors", "*.safetensors")
        found = next(filter(None, (sorted(self.folder.glob(name)) for name in names)), [])
        if found:
            return found
        text = f"{self.folder} has no *.safetensors"
        if any(next(self.folder.glob(pattern), None) for pattern in PICKLES):
            text += "; files of pickle run code when they are read: save the model as safetensors"
        raise InvalidModel(text)

    def add_shard(self, path: Path) -> None:
        check_regular(path)
        try:
            with safe_open(path, framework="numpy"):  # checks the header, sizes and offsets
                pass
        except SafetensorError as error:
            raise InvalidModel(f"{path} is not a safetensors file: {error}") from None
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        for name, row in header.items():
            if name in self.tensors:
                raise InvalidModel(f"{path}: {name!r} is also in {self.tensors[name].path.name}")
            self.tensors[name] = StoredTensor(
                path=path,
                kind=row["dtype"],
                shape=tuple(row["shape"]),
                offset=8 + size + row["data_offsets"][0],
            )

    def read_json(self, name: str, limit: int = MAX_CONFIG_BYTES) -> Any:
        """Return a file's value; None if there is no such file."""
        path = self.folder / name
        if not path.exists():
            return None
        try:
            return json.loads(read_regular(path, limit))
        except (ValueError, RecursionError) as error:
            raise InvalidModel(f"{path} is not JSON: {error}") from None

    def read_object(self, name: str, limit: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
        """Return a file's JSON object; {} if there is no such file."""
        found = self.read_json(name, limit)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise InvalidModel(
                f"{self.folder / name} holds a {type(found).__name__}, not an object"
            )
        return found

    def has(self, name: str) -> bool:
        return (self.folder / name).is_file()

    def read_text(self, name: str) -> str:
        """Return a file's text. Raises InvalidModel."""
        try:
            return read_regular(self.folder / name, MAX_CONFIG_BYTES).decode()
        except UnicodeDecodeError as error:
            raise InvalidModel(f"{self.folder / name} is not UTF-8: {error}") from None

    @cached_property
    def tokenizer(self) -> dict[str, Any]:
        """Return the content of tokenizer.json. If there is none, return the same for vocab.json
        and merges.txt; empty if these are missing too."""
        found = self.read_object("tokenizer.json", MAX_TOKENIZER_BYTES)
        vocab = {} if found else self.read_object("vocab.json", MAX_TOKENIZER_BYTES)
        if not vocab:
            return found
        lines = self.read_text("merges.txt").splitlines() if self.has("merges.txt") else []
        merges = [line for line in lines if line and not line.startswith("#version")]
        return {"model": {"vocab": vocab, "merges": merges or None}}


def is_plain_name(name: Any) -> bool:
    """Return True for a file name without a folder, so that the file lies in the checkpoint's
    folder."""
    return isinstance(name, str) and name not in ("", ".", "..") and Path(name).name == name
