"""GGUF readers with one known mistake each: our reader with one changed rule."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from struct import Struct
from typing import Any
from unittest.mock import patch

from lockstep.engine.errors import MalformedFile
from lockstep.engine.gguf import fields as gguf_fields
from lockstep.engine.gguf import file as gguf_file
from lockstep.engine.gguf.file import GgufFile

Change = Callable[[ExitStack], None]


def replaced(module: Any, name: str, value: Any) -> Change:
    return lambda stack: stack.enter_context(patch.object(module, name, value))


def nothing(*args: Any, **kwargs: Any) -> None:
    """Check nothing."""


class TrustingFields(gguf_fields.Fields):
    """Fields that read as many bytes as the file claims, even beyond its end."""

    __slots__ = ()

    def string(self, what: str) -> bytes:
        return self.take(self.number(Struct("<Q"), what))


def overlapping(fields: Any, info: Any, expected: int, alignment: int) -> None:
    """Read the tensors, and check only that an offset is aligned."""
    if info.offset % alignment:
        gguf_fields.refuse("misaligned", fields.at - 8, "misaligned")


def as_u32(module: Any) -> Change:
    return replaced(module, "U64", Struct("<I4x"))


READERS: dict[str, tuple[Change, ...]] = {
    "trusts counts": (
        replaced(gguf_fields, "check_count", nothing),
        replaced(gguf_file, "check_data_is_there", nothing),
    ),
    "trusts lengths": (
        replaced(gguf_fields, "Fields", TrustingFields),
        replaced(gguf_file, "Fields", TrustingFields),
    ),
    "ignores the alignment": (replaced(gguf_file, "pad_to", lambda n, alignment: n),),
    "lets tensors overlap": (replaced(gguf_file, "check_offset", overlapping),),
    "reads u64 lengths as u32": (as_u32(gguf_fields), as_u32(gguf_file)),
    "stops at the first NUL": (
        replaced(gguf_fields, "text_of", lambda raw: raw.split(b"\0")[0].decode(errors="replace")),
    ),
    "crashes on a negative extent": (replaced(gguf_file, "INT64_MAX", None),),
    "takes 13 for a type of value": (
        replaced(gguf_fields, "VALUE_TYPES", (*gguf_fields.VALUE_TYPES, gguf_fields.ValueType.U8)),
    ),
}


@contextmanager
def wrong(name: str) -> Iterator[None]:
    with ExitStack() as stack:
        for change in READERS[name]:
            change(stack)
        yield


def verdict(raw: bytes) -> str:
    try:
        GgufFile.from_bytes(raw)
    except MalformedFile as error:
        return error.kind
    return "accepted"
