"""Writes GGUF files, with typed metadata and streamed tensor data. The same input always gives the
same bytes.

    write_gguf(
        path,
        {"general.architecture": ("STR", "llama"), "llama.rope.freqs": ("ARR[F32]", [1.0, 0.5])},
        [("token_embd.weight", (64, 512), "Q8_0", chunks)],
    )

The types are explicit, because GGUF readers distinguish U32 from I32. No type is guessed from a
value.
"""

import errno
import io
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from struct import Struct, error, pack
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import InvalidModel
from lockstep.engine.gguf.file import DEFAULT_ALIGNMENT, Value, ValueType
from lockstep.engine.gguf.regular_file import check_regular
from lockstep.engine.gguf.split_files import parts_of
from lockstep.engine.gguf.types import TensorType, type_by_name

Typed = tuple[str | ValueType, Any]  # such as ("U32", 7), ("STR", "x"), ("ARR[F32]", [1.0])
Source = NDArray[Any] | bytes | Iterable[bytes]  # an iterable yields chunks of any size
Tensor = tuple[str, Sequence[int], str, Source]  # name, ne (fastest first), name of the type, data

ALIGNMENT_KEY = "general.alignment"

_CODES = {
    ValueType.U8: "B",
    ValueType.I8: "b",
    ValueType.U16: "H",
    ValueType.I16: "h",
    ValueType.U32: "I",
    ValueType.I32: "i",
    ValueType.F32: "f",
    ValueType.BOOL: "?",
    ValueType.U64: "Q",
    ValueType.I64: "q",
    ValueType.F64: "d",
}
_PLAIN = {  # tensor types that numpy has too
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
}
_HEADER = Struct("<4sIQQ")


def write_gguf(
    path: Path,
    metadata: Mapping[str, Typed | Value],
    tensors: Iterable[Tensor] = (),
    *,
    version: int = 3,
    alignment: int = DEFAULT_ALIGNMENT,
) -> None:
    """Write the file under a temporary name next to `path`, then rename it.

    Chunks are drawn only when their tensor is written, so a large model is never held in memory. An
    alignment other than 32 adds `general.alignment` after the other keys, unless the other keys
    include it. Raises ValueError, which names the value that does not fit its type, or the tensor
    with a wrong number of bytes.
    """
    check_output(path)
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as out:
            _write(out, metadata, tensors, version, alignment)
        os.replace(part, path)
    except OSError as error:  # the error of a full disk does not name the file
        if error.filename is None:
            error.filename = str(path)
        raise
    finally:
        part.unlink(missing_ok=True)  # exists only if something failed


def check_output(path: Path, model: Path | None = None) -> None:
    """Check that a file can be written at the path. Raises OSError if it cannot. Raises
    InvalidModel if the file would replace one of the model's own files; a split model has several
    files."""
    if path.exists():
        check_regular(path)  # a rename would replace a device
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(path))
    if model is not None and path.exists():
        parts = parts_of(model)
        if any(path.samefile(part) for part in parts):
            what = "the model itself" if len(parts) == 1 else f"one of the {len(parts)} model files"
            raise InvalidModel(f"{path} is {what}; name another file")


def gguf_bytes(
    metadata: Mapping[str, Typed | Value],
    tensors: Iterable[Tensor] = (),
    *,
    version: int = 3,
    alignment: int = DEFAULT_ALIGNMENT,
) -> bytes:
    """Return the bytes of a small file, built in memory."""
    out = io.BytesIO()
    _write(out, metadata, tensors, version, alignment)
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    ne: tuple[int, ...]
    type: TensorType
    n_bytes: int
    source: Source


def _write(
    out: BinaryIO,
    metadata: Mapping[str, Typed | Value],
    tensors: Iterable[Tensor],
    version: int,
    alignment: int,
) -> None:
    if version not in (2, 3):
        raise ValueError(f"GGUF version {version}, expected 2 or 3")
    pairs = _with_alignment(metadata, alignment)
    rows = [_row(*tensor) for tensor in tensors]
    if len({row.name for row in rows}) < len(rows):
        raise ValueError("two tensors have the same name")
    out.write(_HEADER.pack(b"GGUF", version, len(rows), len(pairs)))
    for key, value in pairs.items():
        out.write(_identifier(key, 65535) + _value(key, value))
    offset = 0
    for row in rows:
        out.write(_identifier(row.name, 63) + pack(f"<I{len(row.ne)}q", len(row.ne), *row.ne))
        out.write(pack("<IQ", row.type.id, offset))
        offset += row.n_bytes + -row.n_bytes % alignment
    for row in rows:
        out.write(bytes(-out.tell() % alignment))
        _write_data(out, row)
    if rows:
        # gguf_init_from_file with no_alloc=false requires padding after the last tensor too
        out.write(bytes(-out.tell() % alignment))


# --- metadata -------------------------------------------------------------------------------


def _with_alignment(
    metadata: Mapping[str, Typed | Value], alignment: int
) -> dict[str, Typed | Value]:
    if alignment < 1 or alignment.bit_count() != 1:
        raise ValueError(f"alignment {alignment}, expected a power of two")
    pairs = dict(metadata)
    if ALIGNMENT_KEY in pairs:
        type_name, said = _typed(pairs[ALIGNMENT_KEY])
        if type_name != "U32" or said != alignment:
            text = f"{ALIGNMENT_KEY} is {type_name} {said}"
            raise ValueError(f"{text}, but the file is written with alignment {alignment}")
    elif alignment != DEFAULT_ALIGNMENT:
        pairs[ALIGNMENT_KEY] = ("U32", alignment)
    return pairs


def _typed(value: Typed | Value) -> tuple[str, Any]:
    if isinstance(value, Value):
        return value.type_name, value.data
    kind, data = value
    return (kind.name if isinstance(kind, ValueType) else kind), data


def _value(key: str, value: Typed | Value) -> bytes:
    type_name, data = _typed(value)
    try:
        if type_name.startswith("ARR["):
            return pack("<I", ValueType.ARR) + _array(type_name, data)
        kind = _value_type(type_name)
        return pack("<I", kind) + _scalar(kind, data)
    except (ValueError, TypeError, OverflowError, error) as problem:
        raise ValueError(f"{key!r} cannot be written as {type_name}: {problem}") from problem


def _value_type(name: str) -> ValueType:
    if name not in ValueType.__members__ or name == "ARR":
        known = ", ".join(kind for kind in ValueType.__members__ if kind != "ARR")
        raise ValueError(f"no value type named {name!r} (known: {known}, ARR[...])")
    return ValueType[name]


def _scalar(kind: ValueType, data: Any) -> bytes:
    if kind is ValueType.STR:
        return _string(data)
    if isinstance(data, bool | np.bool_) is not (kind is ValueType.BOOL):
        raise TypeError(f"{data!r} is a {type(data).__name__}")
    return pack("<" + _CODES[kind], data)


def _array(type_name: str, data: Any) -> bytes:
    """Return the bytes of an array. The elements of nested arrays are `Value`s, or plain sequences
    of the inner type."""
    if not type_name.endswith("]"):
        raise ValueError(f"the bracket of {type_name!r} is not closed")
    if isinstance(data, str):
        raise TypeError("expected an array of strings, got one string")
    inner = type_name[len("ARR[") : -1]
    if inner == "ARR" or inner.startswith("ARR["):
        parts = [_inner_array(inner, item) for item in data]
        return pack("<IQ", ValueType.ARR, len(parts)) + b"".join(parts)
    kind = _value_type(inner)
    head = pack("<IQ", kind, len(data))
    if isinstance(data, np.ndarray):
        wanted = np.dtype("<" + _CODES[kind]) if kind in _CODES else None
        if data.dtype != wanted or data.ndim != 1:
            raise TypeError(f"the array is {data.ndim}-dimensional {data.dtype}")
        return head + data.tobytes()
    one = _string if kind is ValueType.STR else partial(_scalar, kind)
    return head + b"".join(map(one, data))


def _inner_array(inner: str, item: Any) -> bytes:
    if isinstance(item, Value):
        return _array(item.type_name, item.data)
    if inner == "ARR":
        raise TypeError("ARR[ARR] takes Values; write ARR[ARR[I32]] and the like for plain lists")
    return _array(inner, item)


def _string(data: Any) -> bytes:
    if not isinstance(data, str | bytes):
        raise TypeError(f"{data!r} is a {type(data).__name__}, expected a string")
    raw = data if isinstance(data, bytes) else data.encode("utf-8", "surrogateescape")
    return pack("<Q", len(raw)) + raw


def _identifier(name: str, limit: int) -> bytes:
    raw = name.encode()
    if not 1 <= len(raw) <= limit or b"\0" in raw:
        raise ValueError(f"{name[:80]!r} is not a name of 1 to {limit} bytes without NUL")
    return pack("<Q", len(raw)) + raw


# --- tensors --------------------------------------------------------------------------------


def _row(name: str, ne: Sequence[int], type_name: str, source: Source) -> _Row:
    kind = type_by_name(type_name)
    dims = tuple(int(extent) for extent in ne)
    if len(dims) > 4 or min(dims, default=0) < 0:
        raise ValueError(
            f"{name!r} has the shape {dims}, expected at most 4 dimensions of at least 0"
        )
    if (dims[0] if dims else 1) % kind.block:
        raise ValueError(
            f"the rows of {name!r} are not a multiple of {kind.block} long, as {type_name} needs"
        )
    return _Row(name, dims, kind, prod(dims) // kind.block * kind.bytes, source)


def _write_data(out: BinaryIO, row: _Row) -> None:
    written = 0
    for chunk in _chunks(row):
        written += out.write(chunk)
        if written > row.n_bytes:
            break
    if written != row.n_bytes:
        got = f"more than {row.n_bytes}" if written > row.n_bytes else written
        text = f"{row.name!r} ({row.type.name}, {row.ne}) takes {row.n_bytes} bytes"
        raise ValueError(f"{text}, got {got}")


def _chunks(row: _Row) -> Iterator[bytes | memoryview]:
    source = row.source
    if isinstance(source, bytes | bytearray | memoryview):
        yield source
    elif isinstance(source, np.ndarray):
        if source.dtype != np.uint8:
            _check_array(row, source)
        yield np.ascontiguousarray(source).reshape(-1).view(np.uint8).data
    else:
        yield from source


def _check_array(row: _Row, source: NDArray[Any]) -> None:
    """Raise ValueError unless an array of numbers has the tensor's type and shape. The shape is in
    numpy's order of axes."""
    wanted = _PLAIN.get(row.type.name)
    if wanted is None or source.dtype != wanted or source.shape != row.ne[::-1]:
        text = f"{row.name!r} is {row.type.name} of numpy shape {row.ne[::-1]}"
        raise ValueError(f"{text}, got {source.dtype} of shape {source.shape}")
