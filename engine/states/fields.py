"""The fields of a state file, read one by one, with every size checked before memory is
allocated."""

from dataclasses import dataclass
from struct import Struct
from typing import Any, Literal, NoReturn, get_args

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import MalformedFile
from lockstep.engine.gguf.entries import Buffer

StateKind = Literal[
    "magic",  # the file is no state file of llama.cpp
    "version",  # the file has the version of another llama.cpp
    "truncated",  # the file ends within a field
    "length",  # more bytes are claimed than remain
    # the number of streams, cells, sequences or layers is zero, or more than llama.cpp ever has
    "count",
    "architecture",  # the architecture's name is empty or not a text
    "position",  # a position is negative
    "sequence",  # a sequence has an id that llama.cpp never writes there
    "duplicate",  # a sequence has two cells at one position
    "layout",  # a flag is neither 0 nor 1, or states are transposed
    "type",  # the type of keys, values or states is unknown
    "row",  # the size of a row is no whole number of blocks
    "trailing",  # there are bytes after the end
]
STATE_KINDS: tuple[StateKind, ...] = get_args(StateKind)
U32, I32, U64 = Struct("<I"), Struct("<i"), Struct("<Q")


@dataclass(frozen=True, slots=True)
class StateField:
    """The place of a number in a file. name: `pos`, `n_cells`, `type` and so on, as given to
    `StateFields`.
    """

    name: str
    at: int
    size: int


class StateFields:
    """The bytes of a file and the current offset. places: a list that gets each number's place, or
    None.
    """

    __slots__ = ("at", "buffer", "end", "places")

    def __init__(self, buffer: Buffer, places: list[StateField] | None = None) -> None:
        self.buffer, self.places = buffer, places
        self.at, self.end = 0, len(buffer)

    def left(self) -> int:
        return self.end - self.at

    def number(self, layout: Struct, name: str) -> int:
        at = self.at
        if self.end - at < layout.size:
            text = f"the file ends inside {name}: {layout.size} bytes expected, {self.left()} left"
            refuse("truncated", at, text)
        self.at = at + layout.size
        if self.places is not None:
            self.places.append(StateField(name, at, layout.size))
        found: int = layout.unpack_from(self.buffer, at)[0]
        return found

    def count(self, name: str, least: int) -> int:
        """Read a count of items that take at least `least` bytes each."""
        at = self.at
        n = self.number(U32, name)
        self.expect_room(at, n * least, f"{name} is {n}")
        return n

    def expect_room(self, at: int, n_bytes: int, claim: str) -> None:
        if n_bytes > self.left():
            refuse("length", at, f"{claim}: {n_bytes} bytes expected, {self.left()} left")

    def numbers(self, n: int, name: str) -> NDArray[np.int32]:
        """Return a copy of the next n int32; the caller has checked that they exist."""
        start, self.at = self.at, self.at + 4 * n
        if self.places is not None:
            self.places += [StateField(name, start + 4 * i, 4) for i in range(n)]
        return np.frombuffer(self.buffer[start : self.at], "<i4")


def refuse(kind: StateKind, offset: int, message: str) -> NoReturn:
    raise MalformedFile(kind, offset, message)


def expect_between(value: Any, least: int, most: int, kind: StateKind, at: int, what: str) -> None:
    if not least <= value <= most:
        refuse(kind, at, f"{what} is {value}, expected {least} to {most}")
