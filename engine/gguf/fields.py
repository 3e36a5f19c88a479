"""The fields of a GGUF file's header and metadata, read one by one, and the rules for them.

engine/gguf/file.py names the source of the rules and lists the differences from that source.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Any, Literal, NoReturn, get_args

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import MalformedFile
from lockstep.engine.gguf.entries import Buffer, Entries

Kind = Literal[
    "magic",  # another format, a text, or an empty file
    "endianness",  # a big-endian GGUF file
    "version",  # neither 2 nor 3
    "truncated",  # the file ends inside a field
    "data",  # the file ends before its data section, or within a tensor's data
    "count",  # more entries are claimed than the remaining bytes can hold
    "length",  # a string is claimed to be longer than the remaining bytes
    "key-empty",
    "key-long",
    "key-nul",  # a key contains a NUL
    "key-utf8",  # a key is not UTF-8
    "duplicate",  # a key or a tensor name occurs twice
    "value",  # the type of a value is unknown
    "bool",  # a bool is neither 0 nor 1
    "nesting",  # arrays are nested too deeply
    "alignment",  # general.alignment is not a U32 power of two
    "name-empty",  # the name of a tensor is empty
    "name-long",
    "name-nul",
    "name-utf8",
    "dims",  # more than four dimensions, or a negative one
    "overflow",  # more elements than an int64 counts, or more bytes than a uint64 does
    "type",  # the type of a tensor is unknown, or was removed from ggml
    "block",  # a row is not a whole number of blocks
    "misaligned",  # a tensor's offset is no multiple of the alignment
    "overlap",  # a tensor starts before the end of the previous one
    "gap",  # a tensor starts later than directly after the previous one
]
KINDS: frozenset[str] = frozenset(get_args(Kind))
KEY_KINDS: dict[tuple[str, str], Kind] = {
    (what, fault): kind
    for kind in get_args(Kind)
    for what, dash, fault in [kind.partition("-")]
    if dash
}

MAX_KEY_BYTES = 65535
MAX_DEPTH = 4
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
    element: ValueType | None  # for arrays: type of the elements
    data: Any  # int, float, bool or str; arrays: numpy array, list[str], or list[Value] for arrays

    @property
    def type_name(self) -> str:
        """Return the type's name, such as "U32" or "ARR[STR]"."""
        return self.type.name if self.element is None else f"ARR[{self.element.name}]"


# --- the fields that everything is made of --------------------------------------------------

U32 = Struct("<I")
U64 = Struct("<Q")
I64 = Struct("<q")
SCALARS = {
    ValueType.U8: Struct("<B"),
    ValueType.I8: Struct("<b"),
    ValueType.U16: Struct("<H"),
    ValueType.I16: Struct("<h"),
    ValueType.U32: U32,
    ValueType.I32: Struct("<i"),
    ValueType.F32: Struct("<f"),
    ValueType.BOOL: Struct("<B"),
    ValueType.U64: U64,
    ValueType.I64: I64,
    ValueType.F64: Struct("<d"),
}
LEAST_BYTES = {kind: scalar.size for kind, scalar in SCALARS.items()} | {
    ValueType.STR: 8,  # a length
    ValueType.ARR: 12,  # an element type and a count
}
LEAST_BYTES_OF_A_PAIR = 8 + 1 + 4 + 1
LEAST_BYTES_OF_A_TENSOR = 8 + 1 + 4 + 4 + 8
VALUE_TYPES = tuple(ValueType)


class Fields:
    """The bytes of a file and the current offset; refuses to read past the end."""

    __slots__ = ("at", "buffer", "end", "owner")

    def __init__(self, buffer: Buffer, at: int = 0) -> None:
        self.buffer = buffer
        self.at = at
        self.end = len(buffer)
        self.owner = "the header"  # name of the part that is read, for messages

    def left(self) -> int:
        return self.end - self.at

    def number(self, layout: Struct, what: str) -> Any:
        at = self.at
        if self.end - at < layout.size:
            text = f"the file ends inside {what} of {self.owner}: {layout.size} bytes expected, "
            refuse("truncated", at, f"{text}{self.left()} left")
        self.at = at + layout.size
        return layout.unpack_from(self.buffer, at)[0]

    def take(self, n: int) -> bytes:
        """Return the next `n` bytes; the caller has checked that they exist."""
        start, self.at = self.at, self.at + n
        return self.buffer[start : self.at]

    def string(self, what: str) -> bytes:
        at = self.at
        n = self.number(U64, f"the length of {what}")
        if n > self.left():
            text = f"{what} of {self.owner} claims {n} bytes, but {self.left()} are left"
            refuse("length", at, text)
        return self.take(n)

    def value_type(self, what: str) -> ValueType:
        at = self.at
        id: int = self.number(U32, what)
        if id >= len(VALUE_TYPES):
            text = f"{what} of {self.owner} is {id}, expected 0 to {len(VALUE_TYPES) - 1}"
            refuse("value", at, text)
        return VALUE_TYPES[id]


def refuse(kind: Kind, offset: int, message: str) -> NoReturn:
    raise MalformedFile(kind, offset, message)


def pad_to(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment


def identifier(fields: Fields, what: Literal["key", "name"], limit: int) -> str:
    """Return a key or a tensor name: 1 to `limit` bytes of UTF-8 without NUL."""
    at = fields.at
    raw = fields.string(f"the {what}")
    if not 1 <= len(raw) <= limit:
        text = f"the {what} of {fields.owner} has {len(raw)} bytes, expected 1 to {limit}"
        refuse(KEY_KINDS[what, "long" if raw else "empty"], at, text)
    if (nul := raw.find(0)) >= 0:
        text = f"the {what} of {fields.owner} holds a NUL: {raw[:80]!r}"
        refuse(KEY_KINDS[what, "nul"], at + 8 + nul, text)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        text = f"the {what} of {fields.owner} is not UTF-8: {raw[:80]!r}"
        kind = KEY_KINDS[what, "utf8"]
        raise MalformedFile(kind, at + 8 + error.start, text) from None


# --- header ---------------------------------------------------------------------------------

BEFORE_GGUF = ("ggml", "ggmf", "ggjt", "ggla")
OTHER_FORMATS = (
    (b"\x89HDF", "an HDF5 file (a Keras model?)"),
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint?)"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"version https://git-lfs", "a Git LFS pointer instead of the file that it stands for"),
    (b"<", "a text file, by its start HTML or XML (a failed download?)"),
)


def read_header(fields: Fields) -> tuple[int, int, int]:
    """Return the version, the number of tensors and the number of metadata pairs."""
    magic = fields.buffer[:4]
    if magic != b"GGUF":
        if magic and b"GGUF".startswith(magic):
            refuse("truncated", 0, f"the file ends inside the magic: only {magic!r} is there")
        refuse("magic", 0, f"{what_it_is(fields.buffer[:64])}; GGUF starts with b'GGUF'")
    fields.at = 4
    version: int = fields.number(U32, "the version")
    if version not in (2, 3):
        if int.from_bytes(version.to_bytes(4, "little"), "big") in (1, 2, 3):
            refuse("endianness", 4, "a big-endian GGUF file; only little-endian ones are read")
        refuse("version", 4, f"GGUF version {version}, expected 2 or 3")
    n_tensors: int = fields.number(U64, "the number of tensors")
    n_values: int = fields.number(U64, "the number of metadata pairs")
    check_count(fields, 8, n_tensors, LEAST_BYTES_OF_A_TENSOR, "tensors")
    check_count(fields, 16, n_values, LEAST_BYTES_OF_A_PAIR, "metadata pairs")
    return version, n_tensors, n_values


def check_count(fields: Fields, at: int, n: int, least: int, what: str) -> None:
    if n * least > fields.left():
        text = f"{fields.owner} claims {n} {what} of at least {least} bytes each"
        refuse("count", at, f"{text}, but {fields.left()} bytes are left")


def what_it_is(head: bytes) -> str:
    if not head:
        return "the file is empty"
    word = head[:4].decode("latin-1")
    # The old formats wrote their name as an integer, so its letters are reversed in the file.
    for old in BEFORE_GGUF:
        if word in (old, old[::-1]):
            return f"a {old} file, from before GGUF: convert it with a llama.cpp of that time"
    for prefix, name in OTHER_FORMATS:
        if head.startswith(prefix):
            return name
    if head[8:9] == b"{":
        return "a safetensors file, as it seems: convert it to GGUF"
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head):
        return f"a text file: {head[:20]!r}"
    return f"not a GGUF file: it starts with {head[:4]!r}"


# --- metadata -------------------------------------------------------------------------------


def read_metadata(fields: Fields, n: int) -> Entries[Value]:
    metadata = Entries(fields.buffer, value_at)
    for index in range(n):
        fields.owner = f"metadata pair {index}"
        at = fields.at
        key = identifier(fields, "key", MAX_KEY_BYTES)
        if not metadata.add(key.encode(), at):
            refuse("duplicate", at, f"the key {key!r} of {fields.owner} was there before")
        fields.owner = f"the key {key[:80]!r}"
        at = fields.at
        value = read_value(fields, keep=False)
        if key == "general.alignment":
            check_alignment(at, value)
    return metadata


def value_at(buffer: Buffer, at: int) -> Value:
    """Read again the value of the key-value pair at this offset."""
    fields = Fields(buffer, at)
    fields.string("the key")
    return read_value(fields, keep=True)


def check_alignment(at: int, value: Value) -> None:
    if value.type is not ValueType.U32:
        refuse("alignment", at, f"general.alignment is a {value.type_name}, expected a U32")
    if value.data.bit_count() != 1:
        refuse("alignment", at + 4, f"general.alignment is {value.data}, expected a power of two")


def read_value(fields: Fields, *, keep: bool) -> Value:
    """Read a value. keep: True to decode texts and arrays; False to check them without
    allocating."""
    kind = fields.value_type("the type of value")
    if kind is ValueType.ARR:
        return read_array(fields, 1, keep=keep)
    if kind is ValueType.STR:
        raw = fields.string("the string")
        return Value(kind, None, text_of(raw) if keep else None)
    at = fields.at
    number = fields.number(SCALARS[kind], "the value")
    if kind is ValueType.BOOL:
        if number > 1:
            refuse("bool", at, f"{fields.owner} has the bool {number}, expected 0 or 1")
        number = number == 1
    return Value(kind, None, number)


def read_array(fields: Fields, depth: int, *, keep: bool) -> Value:
    at = fields.at
    element = fields.value_type("the type of array elements")
    if element is ValueType.ARR and depth == MAX_DEPTH:
        text = f"{fields.owner} nests arrays deeper than {MAX_DEPTH}"
        refuse("nesting", at, text)
    at = fields.at
    n = fields.number(U64, "the number of array elements")
    check_count(fields, at, n, LEAST_BYTES[element], f"{element.name} elements")
    data: Any
    if element is ValueType.STR:
        data = read_texts(fields, n, keep=keep)
    elif element is ValueType.ARR:
        inner = (read_array(fields, depth + 1, keep=keep) for _ in range(n))
        data = gather_items(inner, keep=keep)
    else:
        data = read_numbers(fields, element, n, keep=keep)
    return Value(ValueType.ARR, element, data)


def gather_items(items: Iterator[Any], *, keep: bool) -> list[Any] | None:
    if keep:
        return list(items)
    deque(items, maxlen=0)
    return None


def read_numbers(fields: Fields, element: ValueType, n: int, *, keep: bool) -> NDArray[Any] | None:
    """Return a read-only copy of the numbers, which stays valid after the file is closed."""
    at, layout = fields.at, SCALARS[element]
    fields.at += n * layout.size
    if element is ValueType.BOOL:
        check_bools(fields, at, np.frombuffer(fields.buffer, np.uint8, n, at))
    if not keep:
        return None
    values: NDArray[Any] = np.frombuffer(fields.buffer[at : fields.at], layout.format)
    return values.view(np.bool_) if element is ValueType.BOOL else values


def check_bools(fields: Fields, at: int, values: NDArray[np.uint8]) -> None:
    if values.max(initial=0) > 1:
        index = int(np.argmax(values > 1))
        text = f"element {index} of {fields.owner} is the bool {values[index]}"
        refuse("bool", at + index, f"{text}, expected 0 or 1")


def read_texts(fields: Fields, n: int, *, keep: bool) -> list[str] | None:
    # a vocabulary has 256k texts, so this loop uses helpers only for errors
    buffer, at, end, unpack = fields.buffer, fields.at, fields.end, U64.unpack_from
    found: list[str] = []
    for index in range(n):
        start = at + 8
        stop = start + unpack(buffer, at)[0] if start <= end else end + 1
        if stop > end:
            fields.at = at
            fields.string(f"string {index}")  # raises the right error
        if keep:
            found.append(buffer[start:stop].decode("utf-8", "surrogateescape"))
        at = stop
    fields.at = at
    return found if keep else None


def text_of(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
