"""Messages between the harness and a worker. A message is a JSON head with raw arrays, and nothing
in it is executable.

A malicious model may control the worker, so its messages are untrusted. Every size is checked
before memory is allocated, every type must be on a closed list, and every field of a record is
checked against its annotation.

    frame = magic, length of head (u32), length of payload (u64), head, payload
    head  = {"arrays": [[dtype, shape], ...], "value": tree}     payload = the arrays, in order
"""

import hashlib
import json
import math
import socket
import struct
import time
import types
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.node import Node, Operand
from lockstep.harness.records import (
    AdapterFile,
    Captured,
    DrawAnswer,
    DrawRequest,
    EngineInfo,
    Evaluation,
    Fault,
    FileSummary,
    Nodes,
    Request,
    SampleAnswer,
    SampleRequest,
    Settings,
    Site,
    TensorRecord,
    TensorSummary,
    Trace,
)

MAGIC = b"LKS1"
PREFIX = struct.Struct("<4sIQ")
RECORDS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        AdapterFile,
        Batch,
        Captured,
        EngineInfo,
        Evaluation,
        Fault,
        FileSummary,
        Node,
        Nodes,
        Operand,
        Request,
        DrawAnswer,
        SampleAnswer,
        DrawRequest,
        SampleRequest,
        Settings,
        Site,
        TensorRecord,
        TensorSummary,
        Trace,
    )
}
HINTS = {name: typing.get_type_hints(cls) for name, cls in RECORDS.items()}
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("bool", "float16", "float32", "float64"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    )
}
MAX_DIMENSIONS = 8  # ggml has 4 dimensions
PLAIN = frozenset({str, int, float, bool, type(None)})
# length of a list of integers from which an array is used; as text it would be three times as slow
MANY = 1000


class WireError(Exception):
    """Error: the bytes are not a message, or a value has a forbidden type."""


class WrongField(WireError):
    """Error: the fields of a record do not match their annotations."""


class Closed(Exception):
    """Error: the other side has closed the connection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageLimits:
    """The maximum sizes of one message, in bytes."""

    head: int = 256 << 20  # bytes; the metadata of a vocabulary of a million tokens fits
    payload: int = 4 << 30


class Channel:
    """One end of a stream socket that carries frames. Deadlines use the monotonic clock."""

    def __init__(self, stream: socket.socket, limits: MessageLimits | None = None) -> None:
        self.stream = stream
        self.limits = limits or MessageLimits()

    def send(self, value: Any, deadline: float | None = None) -> None:
        """Send a message. Raises Closed or TimeoutError. Raises WireError before anything is
        written."""
        self.write(pack(value), deadline)

    def write(self, frame: Sequence[bytes | memoryview], deadline: float | None = None) -> None:
        """Send the parts that `pack` returned."""
        for part in frame:
            self._wait_until(deadline)
            try:
                self.stream.sendall(part)
            except (BrokenPipeError, ConnectionResetError) as error:
                raise Closed("the other side closed the connection") from error

    def receive(self, deadline: float | None = None) -> Any:
        """Receive a message. Raises Closed or TimeoutError, and WireError for bytes that are not a
        message."""
        prefix = bytearray(PREFIX.size)
        self._fill(memoryview(prefix), deadline)
        magic, head_bytes, payload_bytes = PREFIX.unpack(prefix)
        if magic != MAGIC:
            raise WireError(f"a frame must begin with {MAGIC!r}, got {bytes(magic)!r}")
        check_size("head", head_bytes, self.limits.head)
        check_size("payload", payload_bytes, self.limits.payload)
        head = bytearray(head_bytes)
        self._fill(memoryview(head), deadline)
        shapes, tree = open_head(bytes(head), payload_bytes)
        arrays = [np.empty(shape, dtype) for dtype, shape in shapes]
        for array in arrays:
            if array.nbytes:
                self._fill(raw_bytes(array), deadline)
        return decode(tree, arrays)

    def close(self) -> None:
        with suppress(OSError):  # forks of this process or a waiting thread may hold the socket too
            self.stream.shutdown(socket.SHUT_RDWR)
        self.stream.close()

    def _fill(self, target: memoryview, deadline: float | None) -> None:
        at = 0
        while at < len(target):
            self._wait_until(deadline)
            try:
                n = self.stream.recv_into(target[at:])
            except ConnectionResetError:
                n = 0
            if n == 0:
                raise Closed("the other side closed the connection")
            at += n

    def _wait_until(self, deadline: float | None) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError("the deadline has passed")
        self.stream.settimeout(left)


def digest(*values: Any) -> bytes:
    """Return a digest of values that can be sent. It is the same in every process."""
    return hashlib.sha256(b"".join(bytes(part) for part in pack(list(values)))).digest()


def pack(value: Any) -> list[bytes | memoryview]:
    """Return the parts of a frame. Raises WireError for a value whose type is not on the closed
    lists."""
    arrays: list[NDArray[Any]] = []
    tree = encode(value, arrays)
    head = json.dumps(
        {"arrays": [[array.dtype.name, list(array.shape)] for array in arrays], "value": tree}
    ).encode("ascii")
    payload = sum(array.nbytes for array in arrays)
    if len(head) > 0xFFFFFFFF:
        raise WireError(f"a head of {len(head)} bytes does not fit a frame")
    raw = [raw_bytes(array) for array in arrays if array.nbytes]
    return [PREFIX.pack(MAGIC, len(head), payload), head, *raw]


def raw_bytes(array: NDArray[Any]) -> memoryview:
    """Return the memory of an array in C order, for reading or filling."""
    return array.reshape(-1).view(np.uint8).data


def check_size(what: str, size: int, limit: int) -> None:
    if size > limit:
        raise WireError(f"a {what} of {size} bytes is more than the {limit} that are allowed")


def open_head(
    head: bytes, payload_bytes: int
) -> tuple[list[tuple[np.dtype[Any], tuple[int, ...]]], Any]:
    """Return the declared arrays and the value's tree. Raises WireError unless the arrays fill the
    payload exactly."""
    try:
        message = json.loads(head)
        arrays, tree = message["arrays"], message["value"]
        shapes = [(DTYPES[name], checked_shape(shape)) for name, shape in arrays]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise WireError(f"the head is not a message: {type(error).__name__}: {error}") from error
    declared = sum(dtype.itemsize * math.prod(shape) for dtype, shape in shapes)
    if declared != payload_bytes:
        raise WireError(f"arrays of {declared} bytes in a payload of {payload_bytes} bytes")
    return shapes, tree


def checked_shape(shape: Any) -> tuple[int, ...]:
    """Return the shape as a tuple. Raises ValueError for an invalid shape. This includes a shape of
    size zero with another dimension that is too large for numpy."""
    if type(shape) is not list or len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"no shape: {shape!r:.80}")
    if not all(type(n) is int and 0 <= n < 1 << 48 for n in shape):
        raise ValueError(f"no shape: {shape!r:.80}")
    if math.prod(n for n in shape if n) >= 1 << 48:
        raise ValueError(f"too large a shape: {shape!r:.80}")
    return tuple(shape)


# --- values as trees of JSON ------------------------------------------------------------------


def encode(value: Any, arrays: list[NDArray[Any]]) -> Any:
    """Return the tree of a value. Arrays and bytes are appended to `arrays`, and the tree refers to
    their numbers."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, np.generic):
        return encode(value.item(), arrays)
    if isinstance(value, np.ndarray):
        if value.dtype.name not in DTYPES:
            raise WireError(
                f"an array of {value.dtype} cannot be sent (known: {list_known(DTYPES)})"
            )
        arrays.append(np.asarray(value, DTYPES[value.dtype.name], order="C"))
        return {"$": "array", "v": len(arrays) - 1}
    if isinstance(value, bytes):
        arrays.append(np.frombuffer(value, np.uint8))
        return {"$": "bytes", "v": len(arrays) - 1}
    if isinstance(value, list):
        return encode_list(value, arrays)
    if isinstance(value, tuple):
        return {"$": "tuple", "v": [encode(item, arrays) for item in value]}
    if isinstance(value, Mapping):
        pairs = [[encode(k, arrays), encode(v, arrays)] for k, v in value.items()]
        return {"$": "dict", "v": pairs}
    return encode_record(value, arrays)


def encode_list(value: list[Any], arrays: list[NDArray[Any]]) -> Any:
    kinds = {*map(type, value)}
    if len(value) >= MANY and kinds == {int}:  # for example, ten thousand ids
        with suppress(OverflowError):
            arrays.append(np.array(value, np.int64))
            return {"$": "ints", "v": len(arrays) - 1}
    if PLAIN.issuperset(kinds):
        return value
    return [encode(item, arrays) for item in value]


def encode_record(value: Any, arrays: list[NDArray[Any]]) -> Any:
    name = type(value).__name__
    if not is_dataclass(value) or RECORDS.get(name) is not type(value):
        raise WireError(f"a {name} cannot be sent (known records: {list_known(RECORDS)})")
    held = {field.name: encode(getattr(value, field.name), arrays) for field in fields(value)}
    return {"$": name, "v": held}


def decode(tree: Any, arrays: Sequence[NDArray[Any]]) -> Any:
    """Return the value of a tree. Raises WireError for trees that `encode` never writes."""
    try:
        return build(tree, arrays)
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise WireError(f"the tree is not a value: {type(error).__name__}: {error}") from error


def build(tree: Any, arrays: Sequence[NDArray[Any]]) -> Any:
    if type(tree) in PLAIN:
        return tree
    if type(tree) is list:
        if PLAIN.issuperset(map(type, tree)):
            return tree
        return [build(item, arrays) for item in tree]
    tag, held = tree["$"], tree["v"]
    if tag == "array":
        return arrays[index_of(held, arrays)]
    if tag == "bytes":
        return row_of("bytes", np.uint8, arrays[index_of(held, arrays)]).tobytes()
    if tag == "ints":
        return row_of("ints", np.int64, arrays[index_of(held, arrays)]).tolist()
    if tag == "tuple":
        return tuple(build(item, arrays) for item in held)
    if tag == "dict":
        return {build(key, arrays): build(value, arrays) for key, value in held}
    return build_record(tag, held, arrays)


def row_of(what: str, dtype: type[np.generic], array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype != dtype or array.ndim != 1:
        found = f"{array.dtype} {array.shape}"
        raise WireError(f"{what} must be a row of {dtype.__name__}, got {found}")
    return array


def build_record(tag: Any, held: Any, arrays: Sequence[NDArray[Any]]) -> Any:
    if tag not in RECORDS:
        raise WireError(f"no record named {tag!r:.80} (known: {list_known(RECORDS)})")
    hints = HINTS[tag]
    if set(held) != set(hints):
        raise WireError(f"a {tag} has the fields {list_known(hints)}, got {list_known(held)[:200]}")
    values = {name: build(value, arrays) for name, value in held.items()}
    for name, value in values.items():
        if not fits(value, hints[name]):
            wanted, got = words_of(hints[name]), words_for(value, hints[name])
            raise WrongField(f"{tag}.{name} must be {wanted}, got {got}")
    return RECORDS[tag](**values)


def words_of(hint: Any) -> str:
    """Return an annotation in the words of the protocol's documentation."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is np.ndarray:
        (scalar,) = typing.get_args(arguments[1]) or (Any,)
        return "an array" if scalar is Any else f"an array of {np.dtype(scalar)}"
    if origin is tuple and arguments[1:] == (...,):
        return f"a tuple, each item {words_of(arguments[0])}"
    return str(hint)


def words_for(value: Any, hint: Any) -> str:
    """Describe the actual value, down to the first part that does not match the annotation."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} in the shape {value.shape}"
    arguments = typing.get_args(hint)
    if isinstance(value, tuple) and arguments[1:] == (...,):
        wrong = next((i for i, item in enumerate(value) if not fits(item, arguments[0])), None)
        if wrong is not None:
            return f"a tuple with {words_for(value[wrong], arguments[0])} as number {wrong}"
    return f"a {type(value).__name__}"


def index_of(held: Any, arrays: Sequence[NDArray[Any]]) -> int:
    if type(held) is not int or not 0 <= held < len(arrays):
        raise WireError(f"no array number {held!r:.80} among {len(arrays)}")
    return held


def fits(value: Any, hint: Any) -> bool:
    """Return True if a value matches the annotation of a record's field."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, choice) for choice in arguments)
    if origin is np.ndarray:
        (scalar,) = typing.get_args(arguments[1]) or (Any,)
        return isinstance(value, np.ndarray) and (scalar is Any or value.dtype == np.dtype(scalar))
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if arguments[-1] is Ellipsis:
            return all(fits(item, arguments[0]) for item in value)
        return len(value) == len(arguments) and all(map(fits, value, arguments))
    if origin is Mapping:
        return isinstance(value, dict) and all(
            fits(key, arguments[0]) and fits(item, arguments[1]) for key, item in value.items()
        )
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint


def list_known(names: Any) -> str:
    return ", ".join(sorted(map(str, names)))
