"""Values as C99 source: typed arrays, and strings with safe escapes."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTH = 100
C_TYPES = {
    "float64": "double",
    "float32": "float",
    "float16": "uint16_t",  # bits of the number, because C99 has no half type
    "int64": "int64_t",
    "int32": "int32_t",
    "uint8": "uint8_t",
}


def array(name: str, values: NDArray[Any]) -> Iterator[str]:
    """Yield the lines of an array's definition. An empty array holds a zero, because C has no empty
    arrays."""
    flat = np.ascontiguousarray(values).reshape(-1)
    if flat.dtype == np.float16:
        texts: Iterable[str] = (f"0x{bits:04x}" for bits in flat.view(np.uint16))
    elif flat.dtype.kind == "f":
        texts = map(floating, flat)
    else:
        texts = (integer(int(value)) for value in flat)
    yield f"static const {C_TYPES[str(flat.dtype)]} {name}[] = {{"
    yield from fill_lines(texts if flat.size else ("0",))
    yield "};"


def fill_lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield lines, each filled with as many values as fit."""
    line = ""
    for text in texts:
        if len(line) + len(text) + 1 > WIDTH:
            yield line
            line = ""
        line += f"{text},"
    yield line


def floating(value: np.floating[Any]) -> str:
    """Return the shortest decimal that reads back as these bits; all NaNs are written alike."""
    if np.isnan(value):
        return "NAN"
    if np.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    text = str(value)
    text = text if set(text) & set(".e") else f"{text}.0"
    return f"{text}f" if isinstance(value, np.float32) else text


def integer(value: int) -> str:
    """Return a C literal. The least int64 needs an expression, because its number without the sign
    is too large."""
    return "INT64_MIN" if value == -(2**63) else str(value)


def string(text: str) -> str:
    """Return a C literal; quotes, trigraphs and non-ASCII bytes are octal."""
    plain = {c for c in map(chr, range(0x20, 0x7F)) if c not in '"\\?'}
    raw = text.encode("utf-8", "surrogateescape")
    return '"' + "".join(chr(b) if chr(b) in plain else f"\\{b:03o}" for b in raw) + '"'


def identifier(name: str) -> str:
    return "v_" + "".join(c if c.isascii() and c.isalnum() else "_" for c in name)


def table(declaration: str, rows: Sequence[str]) -> Iterator[str]:
    yield f"{declaration} = {{"
    yield from (f"{{{row}}}," for row in rows)
    yield "};"


def set_name(name: str) -> str:
    return f"set_{identifier(name)}"


def definition(level: str, name: str, *fields: str) -> Iterator[str]:
    yield f"extern const struct {level}_set {set_name(name)};"
    yield f"const struct {level}_set {set_name(name)} = {{"
    yield from (f"    {field}," for field in fields)
    yield "};"
