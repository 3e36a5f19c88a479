"""Reader of GGUF files: header, metadata and tensor table, with every rule checked.

The rules are those of ggml/src/gguf.cpp in llama-cpp-python 0.3.36, with these differences. Only
this reader refuses: an empty tensor name, a bool other than 0 and 1, a key or tensor name that is
not UTF-8 or holds a NUL, a key of more than 65535 bytes, a tensor whose bytes are not all in the
file (llama.cpp sees that later, when it loads), and a tensor so long that its ggml_nbytes wraps
around (ggml-org/llama.cpp, pull request 27200). Only this reader accepts arrays of arrays, at most
4 deep.

Both readers accept a tensor with a zero dimension. Such a tensor has no bytes, and the next tensor
has the same offset, so nothing is ambiguous. Code that needs such a tensor's shape refuses it.
Without tensors there is no data section, and `data_offset` is the end of the header, not padded.
"""

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import MalformedFile, Unsupported
from lockstep.engine.gguf.entries import Buffer, Entries
from lockstep.engine.gguf.fields import (
    DEFAULT_ALIGNMENT,
    I64,
    KINDS,
    U32,
    U64,
    Fields,
    Kind,
    Value,
    ValueType,
    identifier,
    pad_to,
    read_header,
    read_metadata,
    refuse,
)
from lockstep.engine.gguf.regular_file import open_regular
from lockstep.engine.gguf.types import TensorType, type_by_id

__all__ = ["DEFAULT_ALIGNMENT", "KINDS", "GgufFile", "TensorInfo", "Value", "ValueType"]

MAX_NAME_BYTES = 63  # GGML_MAX_NAME minus the terminating NUL
MAX_DIMS = 4
KEPT = 1 << 10  # decoded rows of the tensor table that are kept, half a kilobyte each
INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A row of the tensor table."""

    name: str
    ne: tuple[int, ...]  # ggml's order, fastest first, as stored: 0 to 4 dimensions
    type: TensorType
    offset: int  # bytes from the start of the data section
    n_bytes: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape in numpy's order, slowest first."""
        return self.ne[::-1]

    @property
    def n_elements(self) -> int:
        return prod(self.ne)


class GgufFile:
    """A parsed file. Header, metadata and tensor table are checked at once, and decoded on access.

    Refusals are MalformedFile with one of `KINDS`. No size in a header is trusted: it is compared
    with the remaining bytes before anything is allocated. Parsing allocates the index of
    engine/gguf/entries.py and a copy of the current string: at most twice the file's size, for any
    content.
    """

    def __init__(self, buffer: Buffer) -> None:
        fields = Fields(buffer)
        self.version, n_tensors, n_values = read_header(fields)
        self.metadata: Mapping[str, Value] = read_metadata(fields, n_values)
        found = self.metadata.get("general.alignment")
        self.alignment: int = DEFAULT_ALIGNMENT if found is None else found.data
        self.tensors: Mapping[str, TensorInfo] = read_tensor_table(
            fields, n_tensors, self.alignment
        )
        self.header_end = self.data_offset = fields.at
        if self.tensors:
            self.data_offset = pad_to(fields.at, self.alignment)
            check_data_is_there(fields, self.data_offset, self.tensors)
        self._buffer = buffer
        self._bytes: NDArray[np.uint8] | None = np.frombuffer(buffer, np.uint8)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map a regular file and parse it. Truncating the file while it is open causes a SIGBUS."""
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size == 0:
                # an empty file cannot be mapped, and is refused like other empty input
                return cls(b"")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            return cls(mapped)
        except MalformedFile as error:
            error.path = str(path)
            raise

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return cls(bytes(data))

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the tensor's bytes as a read-only view of the file. Raises KeyError without such a
        tensor."""
        if self._bytes is None:
            raise ValueError(f"the bytes of {name!r} cannot be read: the file is closed")
        info = self.tensors[name]
        start = self.data_offset + info.offset
        return self._bytes[start : start + info.n_bytes]

    @property
    def size(self) -> int:
        """Return the size of the whole file in bytes."""
        return len(self._buffer)

    def release(self) -> None:
        """Release the pages that were read: they stay in the system's cache, not in our memory."""
        if isinstance(self._buffer, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            self._buffer.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Close the tensors' bytes. The memory map stays open as long as a view of a tensor, the
        metadata or the tensor table uses it."""
        self._bytes = None
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- tensor table ---------------------------------------------------------------------------


def read_tensor_table(fields: Fields, n: int, alignment: int) -> Entries[TensorInfo]:
    tensors = Entries(fields.buffer, info_at, keep=KEPT)
    size = 0  # bytes of the data section so far
    for index in range(n):
        fields.owner = f"tensor {index}"
        at = fields.at
        name = identifier(fields, "name", MAX_NAME_BYTES)
        if not tensors.add(name.encode(), at):
            refuse("duplicate", at, f"the name {name!r} of {fields.owner} was there before")
        fields.owner = f"the tensor {name!r}"
        info = read_tensor_info(fields, name)
        check_offset(fields, info, size, alignment)
        size += pad_to(info.n_bytes, alignment)
        if size > UINT64_MAX:
            refuse("overflow", at, f"up to {fields.owner} the data has {size} bytes: over uint64")
    return tensors


def info_at(buffer: Buffer, at: int) -> TensorInfo:
    """Read again the tensor info at this offset."""
    fields = Fields(buffer, at)
    return read_tensor_info(fields, fields.string("the name").decode())


def read_tensor_info(fields: Fields, name: str) -> TensorInfo:
    at = fields.at
    ne = read_ne(fields)
    type_at = fields.at
    id = fields.number(U32, "the type")
    try:
        kind = type_by_id(id)
    except Unsupported as error:
        raise MalformedFile("type", type_at, f"{fields.owner}: {error}") from None
    row = ne[0] if ne else 1
    if row % kind.block:
        text = f"{fields.owner} has rows of {row} weights, expected a multiple of {kind.block}"
        refuse("block", at, f"{text} for {kind.name}")
    n_bytes = prod(ne) // kind.block * kind.bytes
    if n_bytes > UINT64_MAX:
        refuse("overflow", at, f"{fields.owner} of {ne} has {n_bytes} bytes: over uint64")
    offset = fields.number(U64, "the offset")
    return TensorInfo(name, ne, kind, offset, n_bytes)


def read_ne(fields: Fields) -> tuple[int, ...]:
    at = fields.at
    n_dims = fields.number(U32, "the number of dimensions")
    if n_dims > MAX_DIMS:
        text = f"{fields.owner} has {n_dims} dimensions, expected at most {MAX_DIMS}"
        refuse("dims", at, text)
    ne: tuple[int, ...] = ()
    for index in range(n_dims):
        at = fields.at
        extent = fields.number(I64, f"dimension {index}")
        if extent < 0:
            refuse("dims", at, f"dimension {index} of {fields.owner} is negative: {extent}")
        ne += (extent,)
        # the running product, as in llama.cpp: a dimension of zero excuses only later dimensions
        if prod(ne) > INT64_MAX:
            refuse("overflow", at, f"{fields.owner} of {ne} has more elements than int64 counts")
    return ne


def check_offset(fields: Fields, info: TensorInfo, expected: int, alignment: int) -> None:
    if info.offset == expected:
        return
    kind: Kind = "overlap" if info.offset < expected else "gap"
    text = f"{fields.owner} is at offset {info.offset}, expected {expected}"
    if info.offset % alignment:
        kind = "misaligned"
        text += f", and offsets are multiples of {alignment}"
    refuse(kind, fields.at - 8, text)


def check_data_is_there(
    fields: Fields, data_offset: int, tensors: Mapping[str, TensorInfo]
) -> None:
    if data_offset > fields.end:
        text = f"the file ends before its data section: it starts at {data_offset}"
        refuse("data", fields.at, f"{text}, the file has {fields.end} bytes")
    for info in tensors.values():
        start = data_offset + info.offset
        if info.n_bytes and start + info.n_bytes > fields.end:
            text = f"the file ends inside the data of tensor {info.name!r}: {info.n_bytes} bytes"
            refuse("data", start, f"{text} expected, {max(fields.end - start, 0)} left")
