"""GGUFReader, the parser of gguf-py, and a map from its exceptions to kinds of failure."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep.engine.errors import Unsupported
from lockstep.harness.adapters.parts.file_summary import VALUE_TYPES
from lockstep.harness.adapters.parts.forked import MemoryFile, in_memory_file, parse_forked
from lockstep.harness.adapters.parts.parsing import (
    ACCEPTED,
    MEMORY_PER_BYTE,
    CostLimits,
    digest,
    extents,
    scalar,
    to_c,
)

LIMITS = CostLimits(
    seconds=0.25,  # a hundred times the usual time for a file of some kilobytes
    # ten times the usual time: a view takes 12 us, and an element may have one byte
    seconds_per_byte=1.2e-4,
    memory=256 << 20,
    memory_per_byte=MEMORY_PER_BYTE["gguf-py"],
)
STRING, ARRAY = VALUE_TYPES.index("STR"), VALUE_TYPES.index("ARR")
REASONS = [
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"magic invalid|mmap an empty file|cannot mmap", "magic"),
        (r"which we cannot handle", "version"),
        (r"Duplicate|duplicated tensor", "duplicate"),
        (r"alignment", "alignment"),
        (r"GGUFValueType", "value"),
        (r"GGMLQuantizationType", "type"),
        (r"UnicodeDecodeError", "key-utf8"),
        (r"Quantized tensor row size", "block"),
        (r"cannot reshape array", "data"),
        (r"MemoryError", "memory"),
        (r"OverflowError", "overflow"),
        (r"IndexError|dtype|buffer", "truncated"),
    )
]


def parse(files: Sequence[bytes], way: str) -> dict[str, Any]:
    if way != "file":
        raise Unsupported(f"gguf-py parses files by way of 'file', not {way!r}")
    import gguf  # noqa: F401  before the fork, or each child would

    with in_memory_file() as file:
        return parse_forked(lambda raw: read(file, raw), files, LIMITS)


def read(file: MemoryFile, raw: bytes) -> tuple[str, int, str]:
    from gguf import GGUFReader

    file.holding(raw)
    try:
        with np.errstate(all="ignore"):
            return ACCEPTED, digest_of(GGUFReader(file.path)), ""
    except MemoryError:
        return "memory", 0, "MemoryError"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return reason_of(text), 0, text


def reason_of(text: str) -> str:
    return next((kind for pattern, kind in REASONS if pattern.search(text)), "other")


def digest_of(reader: Any) -> int:
    fields = {name: f for name, f in reader.fields.items() if not name.startswith("GGUF.")}
    version = int(reader.fields["GGUF.version"].parts[0][0])
    return digest(
        (version, int(reader.alignment), int(reader.data_offset)),
        [(to_c(name.encode()), *value_of(f)) for name, f in fields.items()],
        [row_of(tensor, int(reader.data_offset)) for tensor in reader.tensors],
    )


def value_of(field: Any) -> tuple[int, int, Any]:
    kind = int(field.types[0])
    if kind == STRING:
        return kind, -1, to_c(bytes(field.parts[-1]))
    if kind != ARRAY:
        return kind, -1, scalar(field.parts[-1][0].item())
    element = int(field.parts[3][0])
    parts = [field.parts[i] for i in field.data]
    if element == STRING:
        return kind, element, tuple(to_c(bytes(part)) for part in parts)
    return kind, element, b"".join(part.tobytes() for part in parts)


def row_of(tensor: Any, start: int) -> tuple[bytes, tuple[int, ...], int, int, int]:
    return (
        to_c(tensor.name.encode()),
        extents(tensor.shape),
        int(tensor.tensor_type),
        int(tensor.data_offset) - start,
        int(tensor.n_bytes),
    )
