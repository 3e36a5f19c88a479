"""A draft of a GGUF file, in which every field can be wrong, and its conversion to bytes.

A field that is not set is correct: counts, lengths and offsets follow from the content. A field
that is set keeps its value, and does not change other fields.
"""

from dataclasses import dataclass, field
from struct import Struct, pack

from lockstep.engine.gguf.fields import DEFAULT_ALIGNMENT, pad_to

U32, U64 = Struct("<I"), Struct("<Q")
HEADER = Struct("<4sIQQ")
LOW64 = 2**64 - 1
MOST_DATA = 1 << 16  # bytes written for one tensor or one padding; the file may claim more


def string(raw: bytes, length: int | None = None) -> bytes:
    return U64.pack(len(raw) if length is None else length) + raw


def array(element: int, n: int, items: bytes = b"") -> bytes:
    return pack("<IQ", element, n) + items


@dataclass(slots=True)
class KeyAndValue:
    """A metadata pair. `value` holds all bytes that follow the type."""

    key: bytes
    type: int
    value: bytes
    key_length: int | None = None

    def raw(self) -> bytes:
        return string(self.key, self.key_length) + U32.pack(self.type) + self.value


@dataclass(slots=True)
class TensorRow:
    """A row of the tensor table. Extents are taken modulo 2^64."""

    name: bytes
    ne: tuple[int, ...]
    type: int
    n_bytes: int  # bytes of the tensor, from which the next offset follows
    offset: int | None = None
    n_dims: int | None = None
    name_length: int | None = None

    def raw(self, offset: int) -> bytes:
        n_dims = len(self.ne) if self.n_dims is None else self.n_dims
        at = offset if self.offset is None else self.offset
        extents = [extent & LOW64 for extent in self.ne]
        shape = pack(f"<I{len(extents)}Q", n_dims, *extents)
        return string(self.name, self.name_length) + shape + pack("<IQ", self.type, at & LOW64)


@dataclass(slots=True)
class FileDraft:
    """A whole file. cut: the number of bytes that are missing at its end."""

    pairs: list[KeyAndValue] = field(default_factory=list)
    rows: list[TensorRow] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    n_rows: int | None = None
    n_pairs: int | None = None
    alignment: int = DEFAULT_ALIGNMENT
    padding: bytes | None = None  # between the tables and the data
    data: bytes | None = None
    tail: bytes = b""  # after the data
    cut: int = 0
    whole: bytes | None = None  # replaces everything above

    def put(self, key: bytes, type: int, value: bytes, key_length: int | None = None) -> None:
        self.pairs.append(KeyAndValue(key, type, value, key_length))

    def add(self, name: bytes, ne: tuple[int, ...], type: int, n_bytes: int) -> TensorRow:
        self.rows.append(TensorRow(name, ne, type, n_bytes))
        return self.rows[-1]

    def tables(self) -> bytes:
        """Return the header, the metadata and the tensor table."""
        n_rows = len(self.rows) if self.n_rows is None else self.n_rows
        n_pairs = len(self.pairs) if self.n_pairs is None else self.n_pairs
        parts = [HEADER.pack(self.magic, self.version, n_rows, n_pairs)]
        parts += [pair.raw() for pair in self.pairs]
        offset = 0
        for row in self.rows:
            parts.append(row.raw(offset))
            offset += pad_to(row.n_bytes, self.alignment)
        return b"".join(parts)

    def raw(self) -> bytes:
        made = self.whole
        if made is None:
            made = self.tables()
            if self.rows:
                made += self.padding_after(len(made)) + self.contents()
            made += self.tail
        return made[: len(made) - self.cut] if self.cut else made

    def padding_after(self, n: int) -> bytes:
        if self.padding is not None:
            return self.padding
        return bytes(min(-n % self.alignment, MOST_DATA))

    def contents(self) -> bytes:
        """Return the data, which are zeros unless set. They are padded after the last tensor, as
        llama.cpp requires."""
        if self.data is not None:
            return self.data
        return bytes(sum(min(pad_to(row.n_bytes, self.alignment), MOST_DATA) for row in self.rows))
