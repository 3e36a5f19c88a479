"""A GGUF file: bytes in; header, metadata and tensor table out; strict about every rule.

The rules are those of ggml/src/gguf.cpp in llama-cpp-python 0.3.36, with these differences. Refused
here only: an empty tensor name, a bool other than 0 and 1, a key or tensor name that is not UTF-8
or holds a NUL, a key of more than 65535 bytes, a tensor whose bytes are not all in the file
(llama.cpp sees that later, when it loads), and one so long that its ggml_nbytes wraps around
(ggml-org/llama.cpp, pull request 27200). Accepted here only: arrays of arrays, 4 deep at most.

Both accept a tensor with a zero dimension: it has no bytes, the tensor after it has the same offset
and nothing is ambiguous. That no model can use one is for those to say who ask for its shape.
Without tensors there is no data section, and `data_offset` is the end of the header, not padded.
"""

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from pathlib import Path
from struct import Struct
from types import MappingProxyType, TracebackType
from typing import Any, Literal, NoReturn, Self, get_args

import numpy as np
from numpy.typing import NDArray

from engine.errors import MalformedFile, Unsupported
from engine.ggml_types import TensorType, type_by_id

Kind = Literal[
    "magic",  # another format, text, or nothing at all
    "endianness",  # a big-endian GGUF file
    "version",  # neither 2 nor 3
    "truncated",  # the file ends inside a field, the padding or a tensor's data
    "count",  # more entries are claimed than the bytes that are left can hold
    "length",  # a string is claimed to be longer than the bytes that are left
    "key",  # empty, too long, not UTF-8 or with a NUL
    "duplicate",  # a key or a tensor name for the second time
    "value",  # an unknown type of value
    "bool",  # a bool that is neither 0 nor 1
    "nesting",  # arrays of arrays too deep
    "alignment",  # general.alignment is not a U32 power of two
    "name",  # of a tensor: empty, too long, not UTF-8 or with a NUL
    "dims",  # more than four, or a negative one
    "overflow",  # more elements than an int64 counts, or more bytes than a uint64 does
    "type",  # of a tensor: unknown, or removed from ggml
    "block",  # a row is not a whole number of blocks
    "misaligned",  # a tensor's offset is no multiple of the alignment
    "overlap",  # a tensor starts before the end of the one before it
    "gap",  # a tensor starts later than right after the one before it
]
KINDS: frozenset[str] = frozenset(get_args(Kind))

MAX_KEY_BYTES = 65535
MAX_NAME_BYTES = 63  # GGML_MAX_NAME less the terminating NUL
MAX_DIMS = 4
MAX_DEPTH = 4
INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1
DEFAULT_ALIGNMENT = 32


class ValueType(IntEnum):
    """The types of metadata values, with the ids of `enum gguf_type` in ggml/include/gguf.h."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STR = 8
    ARR = 9
    U64 = 10
    I64 = 11
    F64 = 12


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A metadata value. A str keeps bytes that are not UTF-8 as surrogateescape does."""

    type: ValueType
    element: ValueType | None  # of an array
    data: Any  # int, float, bool or str; arrays: numpy array, list[str], or list[Value] for arrays

    @property
    def type_name(self) -> str:
        """Such as "U32" or "ARR[STR]"."""
        return self.type.name if self.element is None else f"ARR[{self.element.name}]"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A row of the tensor table."""

    name: str
    ne: tuple[int, ...]  # ggml's order, fastest first, as stored: 0 to 4 dimensions
    type: TensorType
    offset: int  # from the start of the data section
    n_bytes: int

    @property
    def shape(self) -> tuple[int, ...]:
        """numpy's order, slowest first."""
        return self.ne[::-1]

    @property
    def n_elements(self) -> int:
        return prod(self.ne)


class GgufFile:
    """A parsed file; tensor data stays where it is until `raw` is asked for it.

    Refusals are MalformedFile with one of `KINDS`. Nothing is allocated because a header claims it:
    every claim is first held against the bytes that are left.
    """

    def __init__(self, buffer: bytes | mmap.mmap) -> None:
        fields = _Fields(buffer)
        self.version, n_tensors, n_values = _read_header(fields)
        metadata = _read_metadata(fields, n_values)
        found = metadata.get("general.alignment")
        self.alignment: int = DEFAULT_ALIGNMENT if found is None else found.data
        tensors = _read_tensor_table(fields, n_tensors, self.alignment)
        self.data_offset = fields.at
        if tensors:
            self.data_offset = _padded(fields.at, self.alignment)
            _check_data_is_there(fields, self.data_offset, tensors)
        self.metadata: Mapping[str, Value] = MappingProxyType(metadata)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)
        self._buffer = buffer
        self._bytes: NDArray[np.uint8] | None = np.frombuffer(buffer, np.uint8)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map the file and parse it. It must not shrink while it is open: that is a SIGBUS."""
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return cls(b"")  # cannot be mapped, and is refused like any other empty input
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            return cls(mapped)
        except BaseException:
            mapped.close()
            raise

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return cls(bytes(data))

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes as a read-only view into the file; KeyError without such a tensor."""
        if self._bytes is None:
            raise ValueError(f"the bytes of {name!r} are gone: the file is closed")
        info = self.tensors[name]
        start = self.data_offset + info.offset
        return self._bytes[start : start + info.n_bytes]

    def close(self) -> None:
        """Views that are still in use stay valid; the map goes with the last of them."""
        self._bytes = None
        if isinstance(self._buffer, mmap.mmap):
            try:
                self._buffer.close()
            except BufferError:  # a view is alive
                self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


# --- the fields that everything is made of --------------------------------------------------

_U32 = Struct("<I")
_U64 = Struct("<Q")
_SCALARS = {
    ValueType.U8: Struct("<B"),
    ValueType.I8: Struct("<b"),
    ValueType.U16: Struct("<H"),
    ValueType.I16: Struct("<h"),
    ValueType.U32: _U32,
    ValueType.I32: Struct("<i"),
    ValueType.F32: Struct("<f"),
    ValueType.BOOL: Struct("<B"),
    ValueType.U64: _U64,
    ValueType.I64: Struct("<q"),
    ValueType.F64: Struct("<d"),
}
_LEAST_BYTES = {kind: scalar.size for kind, scalar in _SCALARS.items()} | {
    ValueType.STR: 8,  # a length
    ValueType.ARR: 12,  # an element type and a count
}
_LEAST_BYTES_OF_A_PAIR = 8 + 1 + 4 + 1
_LEAST_BYTES_OF_A_TENSOR = 8 + 1 + 4 + 4 + 8
_VALUE_TYPES = tuple(ValueType)


class _Fields:
    """The bytes and how far they have been read; refuses to read past the end."""

    __slots__ = ("at", "buffer", "end", "owner")

    def __init__(self, buffer: bytes | mmap.mmap) -> None:
        self.buffer = buffer
        self.at = 0
        self.end = len(buffer)
        self.owner = "the header"  # for messages: whose fields these are

    def left(self) -> int:
        return self.end - self.at

    def number(self, layout: Struct, what: str) -> Any:
        at = self.at
        if self.end - at < layout.size:
            text = f"the file ends inside {what} of {self.owner}: {layout.size} bytes expected, "
            _refuse("truncated", at, f"{text}{self.left()} left")
        self.at = at + layout.size
        return layout.unpack_from(self.buffer, at)[0]

    def take(self, n: int) -> bytes:
        """The next `n` bytes; the caller has seen to it that they are there."""
        start, self.at = self.at, self.at + n
        return self.buffer[start : self.at]

    def string(self, what: str) -> bytes:
        at = self.at
        n = self.number(_U64, f"the length of {what}")
        if n > self.left():
            text = f"{what} of {self.owner} claims {n} bytes, but {self.left()} are left"
            _refuse("length", at, text)
        return self.take(n)

    def value_type(self, what: str) -> ValueType:
        at = self.at
        id: int = self.number(_U32, what)
        if id >= len(_VALUE_TYPES):
            text = f"{what} of {self.owner} is {id}, expected 0 to {len(_VALUE_TYPES) - 1}"
            _refuse("value", at, text)
        return _VALUE_TYPES[id]


def _refuse(kind: Kind, offset: int, message: str) -> NoReturn:
    raise MalformedFile(kind, offset, message)


def _padded(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment


def _identifier(fields: _Fields, what: str, kind: Literal["key", "name"], limit: int) -> str:
    """A key or a tensor name: 1 to `limit` bytes of UTF-8 without NUL."""
    at = fields.at
    raw = fields.string(what)
    if not 1 <= len(raw) <= limit:
        text = f"{what} of {fields.owner} has {len(raw)} bytes, expected 1 to {limit}"
        _refuse(kind, at, text)
    if (nul := raw.find(0)) >= 0:
        _refuse(kind, at + 8 + nul, f"{what} of {fields.owner} holds a NUL: {raw[:80]!r}")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        text = f"{what} of {fields.owner} is not UTF-8: {raw[:80]!r}"
        raise MalformedFile(kind, at + 8 + error.start, text) from None


# --- header ---------------------------------------------------------------------------------

_BEFORE_GGUF = ("ggml", "ggmf", "ggjt", "ggla")
_OTHER_FORMATS = (
    (b"\x89HDF", "an HDF5 file (a Keras model?)"),
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint?)"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"version https://git-lfs", "a Git LFS pointer instead of the file that it stands for"),
    (b"<", "a text file, by its start HTML or XML (a failed download?)"),
)


def _read_header(fields: _Fields) -> tuple[int, int, int]:
    """-> version, number of tensors, number of metadata pairs"""
    magic = fields.buffer[:4]
    if magic != b"GGUF":
        if magic and b"GGUF".startswith(magic):
            _refuse("truncated", 0, f"the file ends inside the magic: only {magic!r} is there")
        _refuse("magic", 0, f"{_what_it_is(fields.buffer[:64])}; GGUF starts with b'GGUF'")
    fields.at = 4
    version: int = fields.number(_U32, "the version")
    if version not in (2, 3):
        if int.from_bytes(version.to_bytes(4, "little"), "big") in (1, 2, 3):
            _refuse("endianness", 4, "a big-endian GGUF file; only little-endian ones are read")
        _refuse("version", 4, f"GGUF version {version}, expected 2 or 3")
    n_tensors: int = fields.number(_U64, "the number of tensors")
    n_values: int = fields.number(_U64, "the number of metadata pairs")
    _check_count(fields, 8, n_tensors, _LEAST_BYTES_OF_A_TENSOR, "tensors")
    _check_count(fields, 16, n_values, _LEAST_BYTES_OF_A_PAIR, "metadata pairs")
    return version, n_tensors, n_values


def _check_count(fields: _Fields, at: int, n: int, least: int, what: str) -> None:
    if n * least > fields.left():
        text = f"{fields.owner} claims {n} {what} of at least {least} bytes each"
        _refuse("count", at, f"{text}, but {fields.left()} bytes are left")


def _what_it_is(head: bytes) -> str:
    if not head:
        return "the file is empty"
    word = head[:4].decode("latin-1")
    # The old formats wrote their name as an integer, so that on disk it is spelled backwards.
    for old in _BEFORE_GGUF:
        if word in (old, old[::-1]):
            return f"a {old} file, from before GGUF: convert it with a llama.cpp of that time"
    for prefix, name in _OTHER_FORMATS:
        if head.startswith(prefix):
            return name
    if head[8:9] == b"{":
        return "a safetensors file, as it seems: convert it to GGUF"
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head):
        return f"a text file: {head[:20]!r}"
    return f"not a GGUF file: it starts with {head[:4]!r}"


# --- metadata -------------------------------------------------------------------------------


def _read_metadata(fields: _Fields, n: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for index in range(n):
        fields.owner = f"metadata pair {index}"
        at = fields.at
        key = _identifier(fields, "the key", "key", MAX_KEY_BYTES)
        if key in metadata:
            _refuse("duplicate", at, f"the key {key!r} of {fields.owner} was there before")
        fields.owner = f"the key {key[:80]!r}"
        at = fields.at
        metadata[key] = value = _read_value(fields)
        if key == "general.alignment":
            _check_alignment(at, value)
    return metadata


def _check_alignment(at: int, value: Value) -> None:
    if value.type is not ValueType.U32:
        _refuse("alignment", at, f"general.alignment is a {value.type_name}, expected a U32")
    if value.data.bit_count() != 1:
        _refuse("alignment", at + 4, f"general.alignment is {value.data}, expected a power of two")


def _read_value(fields: _Fields) -> Value:
    kind = fields.value_type("the type of value")
    if kind is ValueType.ARR:
        return _read_array(fields, 1)
    if kind is ValueType.STR:
        return Value(kind, None, _text(fields.string("the string")))
    at = fields.at
    number = fields.number(_SCALARS[kind], "the value")
    if kind is ValueType.BOOL:
        if number > 1:
            _refuse("bool", at, f"{fields.owner} has the bool {number}, expected 0 or 1")
        number = number == 1
    return Value(kind, None, number)


def _read_array(fields: _Fields, depth: int) -> Value:
    at = fields.at
    element = fields.value_type("the type of array elements")
    if element is ValueType.ARR and depth == MAX_DEPTH:
        text = f"{fields.owner} nests arrays deeper than {MAX_DEPTH}"
        _refuse("nesting", at, text)
    at = fields.at
    n = fields.number(_U64, "the number of array elements")
    _check_count(fields, at, n, _LEAST_BYTES[element], f"{element.name} elements")
    data: Any
    if element is ValueType.STR:
        data = _read_strings(fields, n)
    elif element is ValueType.ARR:
        data = [_read_array(fields, depth + 1) for _ in range(n)]
    else:
        data = _read_numbers(fields, element, n)
    return Value(ValueType.ARR, element, data)


def _read_numbers(fields: _Fields, element: ValueType, n: int) -> NDArray[Any]:
    """Read-only, and a copy: it outlives the map."""
    at = fields.at
    layout = _SCALARS[element]
    values = np.frombuffer(fields.take(n * layout.size), layout.format)
    if element is ValueType.BOOL:
        if values.max(initial=0) > 1:
            index = int(np.argmax(values > 1))
            text = f"element {index} of {fields.owner} is the bool {values[index]}"
            _refuse("bool", at + index, f"{text}, expected 0 or 1")
        values = values.view(np.bool_)
    return values


def _read_strings(fields: _Fields, n: int) -> list[str]:
    # A vocabulary has 256k of them, so this loop does without the helpers until something is wrong.
    buffer, at, end, unpack = fields.buffer, fields.at, fields.end, _U64.unpack_from
    strings = []
    for _ in range(n):
        start = at + 8
        if start > end:
            break
        at = start + unpack(buffer, at)[0]
        if at > end:
            at = start - 8
            break
        strings.append(_text(buffer[start:at]))
    fields.at = at
    if len(strings) < n:
        fields.string(f"string {len(strings)}")  # refuses it with the right words
    return strings


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


# --- tensor table ---------------------------------------------------------------------------


def _read_tensor_table(fields: _Fields, n: int, alignment: int) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    size = 0  # of the data section so far
    for index in range(n):
        fields.owner = f"tensor {index}"
        at = fields.at
        name = _identifier(fields, "the name", "name", MAX_NAME_BYTES)
        if name in tensors:
            _refuse("duplicate", at, f"the name {name!r} of {fields.owner} was there before")
        fields.owner = f"the tensor {name!r}"
        tensors[name] = info = _read_tensor_info(fields, name)
        _check_offset(fields, info, size, alignment)
        size += _padded(info.n_bytes, alignment)
        if size > UINT64_MAX:
            _refuse("overflow", at, f"up to {fields.owner} the data has {size} bytes: over uint64")
    return tensors


def _read_tensor_info(fields: _Fields, name: str) -> TensorInfo:
    at = fields.at
    ne = _read_ne(fields)
    type_at = fields.at
    id = fields.number(_U32, "the type")
    try:
        kind = type_by_id(id)
    except Unsupported as error:
        raise MalformedFile("type", type_at, f"{fields.owner}: {error}") from None
    row = ne[0] if ne else 1
    if row % kind.block:
        text = f"{fields.owner} has rows of {row} weights, expected a multiple of {kind.block}"
        _refuse("block", at, f"{text} for {kind.name}")
    n_bytes = prod(ne) // kind.block * kind.bytes
    if n_bytes > UINT64_MAX:
        _refuse("overflow", at, f"{fields.owner} of {ne} has {n_bytes} bytes: over uint64")
    offset = fields.number(_U64, "the offset")
    return TensorInfo(name, ne, kind, offset, n_bytes)


def _read_ne(fields: _Fields) -> tuple[int, ...]:
    at = fields.at
    n_dims = fields.number(_U32, "the number of dimensions")
    if n_dims > MAX_DIMS:
        text = f"{fields.owner} has {n_dims} dimensions, expected at most {MAX_DIMS}"
        _refuse("dims", at, text)
    ne: tuple[int, ...] = ()
    for index in range(n_dims):
        at = fields.at
        extent = fields.number(_SCALARS[ValueType.I64], f"dimension {index}")
        if extent < 0:
            _refuse("dims", at, f"dimension {index} of {fields.owner} is negative: {extent}")
        ne += (extent,)
        # The running product, as in llama.cpp: a zero dimension excuses only what comes after it.
        if prod(ne) > INT64_MAX:
            _refuse("overflow", at, f"{fields.owner} of {ne} has more elements than int64 counts")
    return ne


def _check_offset(fields: _Fields, info: TensorInfo, expected: int, alignment: int) -> None:
    if info.offset == expected:
        return
    kind: Kind = "overlap" if info.offset < expected else "gap"
    text = f"{fields.owner} is at offset {info.offset}, expected {expected}"
    if info.offset % alignment:
        kind = "misaligned"
        text += f", and offsets are multiples of {alignment}"
    _refuse(kind, fields.at - 8, text)


def _check_data_is_there(
    fields: _Fields, data_offset: int, tensors: Mapping[str, TensorInfo]
) -> None:
    if data_offset > fields.end:
        text = f"the file ends before its data section: it starts at {data_offset}"
        _refuse("truncated", fields.at, f"{text}, the file has {fields.end} bytes")
    for info in tensors.values():
        start = data_offset + info.offset
        if info.n_bytes and start + info.n_bytes > fields.end:
            text = f"the file ends inside the data of tensor {info.name!r}: {info.n_bytes} bytes"
            _refuse("truncated", start, f"{text} expected, {max(fields.end - start, 0)} left")
