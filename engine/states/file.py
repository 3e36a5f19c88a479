"""Reader of state files: tokens, cells, and the tables of keys, values and states.

The format is that of `llama_state_save_file` (ggsn, version 10) and `llama_state_seq_save_file`
(ggsq, version 3) in llama-cpp-python 0.3.36. A file does not name its kind of memory. So the reader
tries each possible layout, until one reads the file to its last byte.
"""

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import MalformedFile, Unsupported
from lockstep.engine.gguf.entries import Buffer
from lockstep.engine.gguf.regular_file import open_regular
from lockstep.engine.gguf.types import TYPES, TensorType
from lockstep.engine.states.cells import SavedPositions, read_cells
from lockstep.engine.states.fields import (
    I32,
    U32,
    U64,
    StateField,
    StateFields,
    expect_between,
    refuse,
)

FileKind = Literal["context", "sequence"]
PartKind = Literal["attention", "recurrent"]
KINDS: dict[bytes, tuple[FileKind, int]] = {  # first letters in the file -> kind, version
    b"nsgg": ("context", 10),
    b"qsgg": ("sequence", 3),
}
DEEPSEEK4 = b"DSV4"  # the memory of deepseek4 begins with this
MAX_STREAMS = 256  # LLAMA_MAX_SEQ in llama.cpp
MAX_LAYERS = 512  # LLAMA_MAX_LAYERS in llama.cpp
LONGEST_NAME = 64  # bytes of an architecture's name


@dataclass(frozen=True)
class StateLayout:
    """The parts of a memory in the order of the file.

    values: whether attention layers store values separately from keys. extra: whether cells also
    hold a token and positions in two dimensions, as with M-RoPE. tables: the number of tables of
    recurrent states, two a layer; None: all tables up to the end.
    """

    parts: tuple[PartKind, ...]
    values: bool = True
    extra: bool = False
    tables: int | None = None


MEMORIES: tuple[tuple[PartKind, ...], ...] = (
    ("attention",),
    ("attention", "attention"),  # layers without a window, then layers with a window
    ("recurrent",),
    ("attention", "recurrent"),
    ("attention", "attention", "recurrent"),
)
LAYOUTS: tuple[StateLayout, ...] = (
    *(
        StateLayout(parts, values, extra)
        for extra, values, parts in product((False, True), (True, False), MEMORIES)
    ),
    StateLayout(()),  # for a model without a memory
)


@dataclass(frozen=True, slots=True)
class SavedRows:
    """Keys, values or states of one layer, for all cells of a stream. at: offset of the first
    byte."""

    name: Literal["k", "v", "r", "s"]
    index: int  # number within the layers of its part
    type: TensorType
    width: int  # number of elements in a cell
    at: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class SavedStream:
    """Cells of a stream and their data. An attention stream without cells has no further data."""

    cells: SavedPositions
    transposed: bool
    n_layers: int
    rows: tuple[SavedRows, ...]


@dataclass(frozen=True, slots=True)
class SavedPart:
    kind: PartKind
    streams: tuple[SavedStream, ...]


@dataclass(frozen=True, slots=True)
class SavedState:
    """A parsed file. tokens: (tokens,), as saved; architecture: None in files of one sequence."""

    kind: FileKind
    version: int
    tokens: NDArray[np.int32]
    architecture: str | None
    layout: StateLayout
    parts: tuple[SavedPart, ...]
    n_bytes: int


def open_state(path: Path, first: Sequence[StateLayout] = ()) -> SavedState:
    """Map a regular file and parse it. Raises MalformedFile and OSError."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            return read_state(b"")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return read_state(mapped, first)


def read_state(
    buffer: Buffer, first: Sequence[StateLayout] = (), places: list[StateField] | None = None
) -> SavedState:
    """Parse a file. Raises MalformedFile with one of `STATE_KINDS`, and Unsupported.

    first: layouts to try before all others. If no layout reads the file, the error is that of the
    first layout in `first`. Without `first`, it is that of the layout that read furthest, not
    counting layouts with M-RoPE cells, which accept nearly any numbers. places: a list that gets
    the places of all numbers.
    """
    head = StateFields(buffer, places)
    kind, version = read_kind(head)
    n = head.count("n_tokens", 4)
    tokens = head.numbers(n, "token")
    architecture = read_architecture(head) if kind == "context" else None
    if head.buffer[head.at : head.at + 4] == DEEPSEEK4:
        raise Unsupported("a state of deepseek4, whose caches have a format of their own")
    furthest: MalformedFile | None = None
    for layout in (*first, *LAYOUTS):
        fields = StateFields(buffer, None if places is None else list(places))
        fields.at = head.at
        try:
            parts = tuple(read_parts(fields, kind, layout))
        except MalformedFile as error:
            if furthest is None or not (first or layout.extra or error.offset <= furthest.offset):
                furthest = error
            continue
        if places is not None and fields.places is not None:
            places[:] = fields.places
        return SavedState(kind, version, tokens, architecture, layout, parts, len(buffer))
    assert furthest is not None
    raise furthest


def read_kind(fields: StateFields) -> tuple[FileKind, int]:
    magic = bytes(fields.buffer[:4])
    fields.number(U32, "magic")
    if magic not in KINDS:
        text = f"not a state file of llama.cpp: it starts with {magic!r}, expected"
        refuse("magic", 0, f"{text} {' or '.join(map(repr, KINDS))}")
    kind, expected = KINDS[magic]
    version = fields.number(U32, "version")
    if version != expected:
        text = f"version {version} of {kind} files, expected {expected}"
        refuse("version", 4, f"{text}, that of llama-cpp-python 0.3.36: save it anew with that")
    return kind, version


def read_architecture(fields: StateFields) -> str:
    at = fields.at
    n = fields.count("n_architecture", 1)
    raw = bytes(fields.buffer[fields.at : fields.at + min(n, LONGEST_NAME)])
    if not 1 <= n <= LONGEST_NAME or not raw.isascii() or not raw.decode("ascii").isprintable():
        text = f"the architecture has {n} bytes, {raw[:20]!r}"
        refuse("architecture", at, f"{text}, expected 1 to {LONGEST_NAME} of printable ASCII")
    fields.at += n
    return raw.decode("ascii")


def read_parts(fields: StateFields, kind: FileKind, layout: StateLayout) -> Iterator[SavedPart]:
    for part in layout.parts:
        if part == "recurrent":
            yield SavedPart(part, (read_states(fields, kind, layout.tables),))
            continue
        at = fields.at
        n = fields.count("n_streams", 4)
        expect_between(n, 1, MAX_STREAMS, "count", at, "the number of streams")
        yield SavedPart(part, tuple(read_stream(fields, kind, layout) for _ in range(n)))
    if fields.left():
        refuse("trailing", fields.at, f"{fields.left()} bytes after the end, expected none")


def read_stream(fields: StateFields, kind: FileKind, layout: StateLayout) -> SavedStream:
    """Read a stream of an attention cache: keys of all layers, then values of all layers."""
    n_ids = 1 if kind == "sequence" else None
    cells = read_cells(fields, n_ids, extra=layout.extra)
    if not len(cells):
        return SavedStream(cells, False, 0, ())
    at = fields.at
    transposed = fields.number(U32, "transposed")
    expect_between(transposed, 0, 1, "layout", at, "the flag for transposed values")
    n_layers = read_n_layers(fields, least=12)
    rows = [read_rows(fields, "k", i, len(cells)) for i in range(n_layers)]
    read = read_columns if transposed else read_rows
    rows += [read(fields, "v", i, len(cells)) for i in range(n_layers if layout.values else 0)]
    return SavedStream(cells, bool(transposed), n_layers, tuple(rows))


def read_states(fields: StateFields, kind: FileKind, tables: int | None) -> SavedStream:
    """Read recurrent states, which end the file: first the convolution tails (r) of all layers that
    have states, then the states (s).
    """
    at = fields.at
    cells = read_cells(fields, 0 if kind == "sequence" else None, extra=False)
    most = 1 if kind == "sequence" else MAX_STREAMS
    expect_between(len(cells), 0, most, "count", at, "the number of states")
    if len(cells.sequences()) < len(cells.ids):
        refuse("duplicate", at, f"sequences {cells.ids.tolist()[:8]}, expected one state of each")
    at = fields.at
    transposed = fields.number(U32, "transposed")
    expect_between(transposed, 0, 0, "layout", at, "the flag for transposed states")
    n_layers = read_n_layers(fields, least=0)
    found: list[SavedRows] = []
    start = fields.at
    while fields.left() if tables is None else len(found) < tables:
        expect_between(len(found), 0, 2 * n_layers - 1, "count", fields.at, "the number of tables")
        found.append(read_rows(fields, "r", len(found), len(cells), least=0))
    if len(found) % 2 or not found:
        refuse("truncated", start, f"{len(found)} tables of states, expected two a layer")
    half = len(found) // 2
    states = (
        SavedRows("s", each.index - half, each.type, each.width, each.at, each.n_bytes)
        for each in found[half:]
    )
    return SavedStream(cells, False, n_layers, (*found[:half], *states))


def read_n_layers(fields: StateFields, least: int) -> int:
    at = fields.at
    n = fields.count("n_layers", least)
    expect_between(n, 0, MAX_LAYERS, "count", at, "the number of layers")
    return n


def read_type(fields: StateFields, what: str) -> TensorType:
    at = fields.at
    id = fields.number(I32, "type")
    if id not in TYPES:
        refuse("type", at, f"{what} have the type {id}, expected an id of ggml's types")
    return TYPES[id]


def read_rows(
    fields: StateFields,
    name: Literal["k", "v", "r", "s"],
    index: int,
    n_cells: int,
    least: int = 1,
) -> SavedRows:
    """Read a type, the number of bytes of a cell, and the cells one after the other."""
    what = f"{name} of layer {index}"
    kind, at = read_type(fields, what), fields.at
    row = fields.number(U64, "row")
    if row % kind.bytes or row < least:
        refuse("row", at, f"{what}: rows of {row} bytes, expected a multiple of {kind.bytes}")
    fields.expect_room(at, row * n_cells, f"{what} have {n_cells} rows of {row} bytes")
    start, fields.at = fields.at, fields.at + row * n_cells
    return SavedRows(name, index, kind, row // kind.bytes * kind.block, start, row * n_cells)


def read_columns(
    fields: StateFields, name: Literal["k", "v", "r", "s"], index: int, n_cells: int
) -> SavedRows:
    """Read a type, the size of an element, the number of elements of a cell, and the values. For
    each element, the values of all cells follow each other.
    """
    what = f"{name} of layer {index}"
    kind, at = read_type(fields, what), fields.at
    size = fields.number(U32, "element")
    if kind.block != 1 or size != kind.bytes:
        refuse("row", at, f"{what}: elements of {size} bytes, expected those of a type {kind.name}")
    at = fields.at
    width = fields.number(U32, "width")
    if not width:
        refuse("row", at, f"{what}: rows of 0 elements, expected 1 or more")
    n_bytes = width * size * n_cells
    fields.expect_room(at, n_bytes, f"{what} have {width} elements of {n_cells} cells")
    start, fields.at = fields.at, fields.at + n_bytes
    return SavedRows(name, index, kind, width, start, n_bytes)
