"""A message: one line of JSON that announces arrays, followed by the bytes of the arrays.

    {"id":7,"ask":"dequantize","type":"Q8_0","arrays":[["raw","u8",[34]]],"bytes":34}\\n<34 bytes>

Messages of an engine are untrusted. The sizes of a line and of the arrays after it are checked
before memory is allocated. Names, types and shapes must be on closed lists.
"""

import json
import os
import select
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.processes.wire import Closed, WireError, checked_shape, raw_bytes

LONGEST_LINE = 64 << 20
MOST_BYTES = 4 << 30  # bytes of all arrays in a message
MOST_ARRAYS = 1 << 20
LONGEST_NAME = 200
PIECE = 1 << 20
DTYPES = {
    name: np.dtype(code)
    for name, code in (
        *(("f32", "<f4"), ("f64", "<f8"), ("f16", "<f2")),
        *(("i32", "<i4"), ("i64", "<i8"), ("u8", "<u1")),
    )
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class Message:
    """A message. `head` is the head without `arrays` and `bytes`."""

    head: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def pack_message(message: Message) -> list[bytes | memoryview]:
    """Return the line of a message, followed by its arrays."""
    arrays = {name: np.ascontiguousarray(value) for name, value in message.arrays.items()}
    rows = [[name, NAMES[value.dtype], list(value.shape)] for name, value in arrays.items()]
    n_bytes = sum(value.nbytes for value in arrays.values())
    head = {**message.head, "arrays": rows, "bytes": n_bytes}
    line = json.dumps(head, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"
    return [line, *(raw_bytes(value) for value in arrays.values() if value.nbytes)]


class Pipe:
    """Our ends of a process's two pipes. Deadlines use the monotonic clock."""

    def __init__(self, to_engine: int, from_engine: int) -> None:
        self.to_engine, self.from_engine = to_engine, from_engine
        for descriptor in (to_engine, from_engine):
            os.set_blocking(descriptor, False)
        self.ahead = bytearray()  # bytes that were read but not yet requested
        self.searched = 0  # number of these bytes that contain no end of a line

    def send(self, message: Message, deadline: float) -> None:
        """Send a message. Raises Closed, or TimeoutError if the process does not read it."""
        for part in pack_message(message):
            left = memoryview(part)
            while left:
                wait_for(deadline, writes=self.to_engine)
                try:
                    left = left[os.write(self.to_engine, left[:PIECE]) :]
                except BlockingIOError:
                    continue
                except OSError as error:
                    raise Closed("the engine stopped reading its input") from error

    def receive(self, deadline: float) -> Message:
        """Receive a message. Raises WireError if it is malformed, Closed, or TimeoutError."""
        return self.message(self.line(deadline), deadline)

    def message(self, line: bytes, deadline: float) -> Message:
        """Read the rest of the message that begins with this line."""
        head = head_of(line)
        shapes = shapes_of(head.pop("arrays", []), head.pop("bytes", None))
        arrays = {name: np.empty(shape, dtype) for name, dtype, shape in shapes}
        for value in arrays.values():
            if value.nbytes:
                self.fill(raw_bytes(value), deadline)
        return Message(head=head, arrays=arrays)

    def line(self, deadline: float) -> bytes:
        """Return the next line, without its newline."""
        while (line := self.whole_line()) is None:
            self.ahead += self.read(PIECE, deadline)
        return line

    def whole_line(self) -> bytes | None:
        """Return the next line if it has been read completely; else None."""
        end = self.ahead.find(b"\n", self.searched)
        if end < 0:
            self.searched = len(self.ahead)
            if self.searched > LONGEST_LINE:
                raise WireError(f"a line of more than {LONGEST_LINE} bytes: {clip(self.ahead)}")
            return None
        line = bytes(self.ahead[:end])
        del self.ahead[: end + 1]
        self.searched = 0
        return line

    def fill(self, target: memoryview, deadline: float) -> None:
        at = min(len(self.ahead), len(target))
        target[:at] = self.ahead[:at]
        del self.ahead[:at]
        while at < len(target):
            piece = self.read(min(PIECE, len(target) - at), deadline)
            target[at : at + len(piece)] = piece
            at += len(piece)

    def read(self, most: int, deadline: float) -> bytes:
        while True:
            wait_for(deadline, reads=(self.from_engine,))
            try:
                piece = os.read(self.from_engine, most)
            except BlockingIOError:
                continue
            if not piece:
                raise Closed("the engine closed its output")
            return piece


def wait_for(
    deadline: float, *, reads: tuple[int, ...] = (), writes: int | None = None
) -> list[int]:
    """Wait until a descriptor is ready, and return the readable ones of `reads`. Raises
    TimeoutError."""
    left = deadline - time.monotonic()
    ready = select.select(reads, [] if writes is None else [writes], [], max(0.0, left))
    if left <= 0 or not (ready[0] or ready[1]):
        raise TimeoutError("the deadline has passed")
    return ready[0]


class NoJson(WireError):
    """Error: a line is not a message. Another program may have written this line to the same
    descriptor."""


def head_of(line: bytes) -> dict[str, Any]:
    try:
        head = json.loads(line, parse_constant=no_constant, object_pairs_hook=each_once)
    except (ValueError, RecursionError) as error:
        kind = WireError if line.lstrip().startswith(b"{") else NoJson
        raise kind(f"expected a line of JSON, got {clip(line)}: {error}") from error
    if type(head) is not dict:
        raise WireError(f"expected a JSON object, got {clip(line)}")
    return head


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object from pairs. Raises ValueError for a repeated key, which is ambiguous."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"duplicate key {key!r:.80}")
            seen.add(key)
    return found


def no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON; send numbers that may be NaN in arrays")


def shapes_of(rows: Any, n_bytes: Any) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
    """Return the name, type and shape of each array that a head announces. Raises WireError if they
    are malformed."""
    try:
        if type(rows) is not list or len(rows) > MOST_ARRAYS:
            raise ValueError("it must be a list of [name, type, shape]")
        found = [
            (name_of(name), DTYPES[dtype], checked_shape(shape)) for name, dtype, shape in rows
        ]
    except (KeyError, TypeError, ValueError) as error:
        known = ", ".join(DTYPES)
        why = "it must be a list of [name, type, shape]" if type(error) is TypeError else error
        raise WireError(f'"arrays" is wrong: {why} (types: {known})') from error
    if len({name for name, _, _ in found}) < len(found):
        raise WireError('"arrays" names one array twice')
    declared = sum(dtype.itemsize * size_of(shape) for _, dtype, shape in found)
    if declared > MOST_BYTES:
        raise WireError(f"the arrays have {declared} bytes, and at most {MOST_BYTES} are allowed")
    if n_bytes is not None and n_bytes != declared:
        raise WireError(f'"bytes" is {n_bytes!r:.40}, but the arrays have {declared} bytes')
    return found


def name_of(name: Any) -> str:
    if type(name) is not str or not 0 < len(name) <= LONGEST_NAME:
        raise ValueError(f"not a name: {name!r:.80}")
    return name


def size_of(shape: tuple[int, ...]) -> int:
    n = 1
    for size in shape:
        n *= size
    return n


def clip(line: bytes | bytearray) -> str:
    return repr(bytes(line[:120])) + ("..." if len(line) > 120 else "")
