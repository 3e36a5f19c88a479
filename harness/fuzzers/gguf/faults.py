"""The named ways in which a GGUF file is unusual or broken: the change, the verdict, and the
reason."""

from collections.abc import Callable
from dataclasses import dataclass
from struct import pack
from typing import Literal

from lockstep.engine.gguf.fields import ValueType as V
from lockstep.harness.fuzzers.draw import Draw
from lockstep.harness.fuzzers.gguf.draft import U32, U64, FileDraft, array, string

FileVerdict = Literal["valid", "invalid", "implementation-defined"]
Apply = Callable[[FileDraft, Draw], None]

ALIGNMENT = b"general.alignment"
F32, Q8_0, Q4_K, I8 = 0, 8, 12, 24
Q8_0_BYTES = 34
NUL = b"\0"


@dataclass(frozen=True, slots=True)
class FileFault:
    """A way to change a file. kinds: the kinds of refusal that our reader may give; empty if it
    accepts the file."""

    name: str
    verdict: FileVerdict
    kinds: tuple[str, ...]
    why: str
    apply: Apply


FAULTS: dict[str, FileFault] = {}


def fault(name: str, verdict: FileVerdict, kinds: str, why: str) -> Callable[[Apply], Apply]:
    def register(apply: Apply) -> Apply:
        FAULTS[name] = FileFault(name, verdict, tuple(kinds.split()), why, apply)
        return apply

    return register


def each(rows: dict[str, Apply], verdict: FileVerdict, kinds: str, why: str) -> None:
    """Register several faults that have the same verdict and the same reason."""
    for name, apply in rows.items():
        fault(name, verdict, kinds, why)(apply)


# --- header -----------------------------------------------------------------------------------


def with_fields(**changes: int | bytes) -> Apply:
    def apply(draft: FileDraft, draw: Draw) -> None:
        for name, value in changes.items():
            setattr(draft, name, value)

    return apply


def whole(raw: bytes) -> Apply:
    return with_fields(whole=raw)


each(
    {"empty-file": whole(b""), "magic-wrong": with_fields(magic=b"GGML")}
    | {"magic-lower-case": with_fields(magic=b"gguf"), "magic-swapped": with_fields(magic=b"FUGG")},
    "invalid",
    "magic",
    "A GGUF file starts with the bytes GGUF.",
)
each(
    {"format-ggjt": whole(b"tjgg" + bytes(28)), "format-zip": whole(b"PK\3\4" + bytes(28))}
    | {"format-safetensors": whole(U64.pack(24) + b'{"t":{"dtype":"F32"}}   ')}
    | {"format-text": whole(b"Not the model but a page about it")},
    "invalid",
    "magic",
    "Another format, which readers had better name.",
)
each(
    {f"version-{n}": with_fields(version=n) for n in (0, 1, 4, 5)}
    | {
        "version-65539": with_fields(version=0x10003),
        "version-max": with_fields(version=2**32 - 1),
    },
    "invalid",
    "version",
    "Versions 2 and 3 exist; version 1 had 32-bit counts and lengths and no reader takes it.",
)
fault("version-2", "valid", "", "Version 2 has the layout of version 3.")(with_fields(version=2))


@fault(
    "big-endian",
    "implementation-defined",
    "endianness",
    "Version 3 may be big-endian, for big-endian machines; llama.cpp and we read little-endian.",
)
def _(draft: FileDraft, draw: Draw) -> None:
    head = pack(">4sIQQ", b"GGUF", 3, 0, 1)
    draft.whole = head + pack(">Q", 1) + b"k" + pack(">II", V.U32, 7)


HUGE = {"max": 2**64 - 1, "2-63": 2**63, "2-60": 2**60, "2-32": 2**32}
each(
    {f"tensors-{name}": with_fields(n_rows=n) for name, n in HUGE.items()}
    | {f"pairs-{name}": with_fields(n_pairs=n) for name, n in HUGE.items()},
    "invalid",
    "count",
    "More entries are claimed than the bytes of the file can hold.",
)


@fault("pairs-one-more", "invalid", "count length truncated key-empty key-nul key-utf8 value "
       "duplicate key-long bool nesting alignment",
       "One pair more is claimed than there is.")  # fmt: skip
def _(draft: FileDraft, draw: Draw) -> None:
    draft.rows.clear()
    draft.n_pairs = len(draft.pairs) + 1


@fault("tensors-one-more", "invalid", "count length truncated name-empty name-long name-nul "
       "name-utf8 dims",
       "One tensor more is claimed than there is.")  # fmt: skip
def _(draft: FileDraft, draw: Draw) -> None:
    draft.n_rows = len(draft.rows) + 1


@fault("cut-anywhere", "invalid", "magic truncated data count length dims",
       "The file ends too early.")  # fmt: skip
def _(draft: FileDraft, draw: Draw) -> None:
    draft.add(b"cut", (8,), F32, 32)
    draft.cut = 1 + draw.below(len(draft.raw()))


# --- keys -------------------------------------------------------------------------------------


def one_pair(key: bytes, type: int, value: bytes, key_length: int | None = None) -> Apply:
    return lambda draft, draw: draft.put(key, type, value, key_length)


def key(raw: bytes, key_length: int | None = None) -> Apply:
    return one_pair(raw, V.U8, b"\1", key_length)


fault("key-empty", "invalid", "key-empty count", "A key has at least one byte.")(key(b""))
fault("key-65535", "valid", "", "The longest key that the format allows.")(key(b"k" * 65535))
fault(
    "key-65536",
    "invalid",
    "key-long",
    "The format allows keys of 65535 bytes; llama.cpp has no limit below 1 GiB.",
)(key(b"k" * 65536))
each(
    {"key-nul": key(b"k\0x"), "key-nul-alone": key(NUL)}
    | {"key-nul-alignment": one_pair(ALIGNMENT + b"\0x", V.U32, U32.pack(64))}
    | {"key-nul-alignment-type": one_pair(ALIGNMENT + b"\0x", V.U64, U64.pack(64))},
    "invalid",
    "key-nul",
    "Keys are ASCII by the format, and a C interface ends them at a NUL, so two keys become one.",
)
each(
    {"key-not-utf8": key(b"k\xff"), "key-surrogate": key(b"\xed\xa0\x80")}
    | {"key-overlong": key(b"\xc0\xaf")},
    "invalid",
    "key-utf8",
    "Keys are ASCII by the format; bytes that are not even UTF-8 cannot be shown.",
)
each(
    {"key-capitals": key(b"General.Name"), "key-space": key(b"a key"), "key-utf8": key(b"\xc3\xa9")}
    | {"key-control": key(b"\x1b[2J\n"), "key-dots": key(b"..")},
    "implementation-defined",
    "",
    "The format wants lower_snake_case words and dots; no reader insists.",
)
each(
    {"key-length-max": key(b"k", 2**64 - 1), "key-length-wraps": key(b"k", 2**64 - 8)}
    | {"key-length-2-63": key(b"k", 2**63), "key-length-2-40": key(b"k", 2**40)}
    | {"key-length-2-32": key(b"k", 2**32 + 1)},
    "invalid",
    "length count",
    "A string is longer than the rest of the file; start + length may wrap around.",
)


@fault("key-twice", "invalid", "duplicate", "A key occurs once; readers differ in which one wins.")
def _(draft: FileDraft, draw: Draw) -> None:
    draft.put(b"twice", V.U8, b"\1")
    draft.put(b"twice", V.U8, b"\2")


# --- values -----------------------------------------------------------------------------------


def value(type: int, raw: bytes) -> Apply:
    return one_pair(b"v", type, raw)


each(
    {"value-type-13": value(13, bytes(8)), "value-type-max": value(2**32 - 1, bytes(8))}
    | {"value-type-2-31": value(2**31, bytes(8)), "value-type-256": value(256, bytes(8))}
    | {"array-type-13": value(V.ARR, array(13, 1, bytes(8)))}
    | {"array-type-max": value(V.ARR, array(2**32 - 1, 1, bytes(8)))},
    "invalid",
    "value",
    "There are thirteen types of values.",
)
each(
    {f"bool-{n}": value(V.BOOL, bytes([n])) for n in (2, 128, 255)}
    | {"bool-array-2": value(V.ARR, array(V.BOOL, 3, b"\0\1\2"))},
    "invalid",
    "bool",
    "A bool is 0 or 1, and anything else is invalid, says the format.",
)
each(
    {"string-empty": value(V.STR, string(b"")), "string-nul": value(V.STR, string(b"a\0b"))},
    "valid",
    "",
    "A string is a length and bytes; a NUL is one of them.",
)
each(
    {"string-not-utf8": value(V.STR, string(b"\xff\xfe"))}
    | {"strings-not-utf8": value(V.ARR, array(V.STR, 2, string(b"\xed\xa0\x80") + string(b"ok")))},
    "implementation-defined",
    "",
    "Strings are UTF-8 by the format, but real vocabularies hold broken pieces: readers let them.",
)
each(
    {f"string-length-{name}": value(V.STR, string(b"ab", n)) for name, n in HUGE.items()}
    | {"string-length-wraps": value(V.STR, string(b"ab", 2**64 - 60))}
    | {"strings-length-max": value(V.ARR, array(V.STR, 1, string(b"ab", 2**64 - 1)))}
    | {"strings-length-2-31": value(V.ARR, array(V.STR, 1, string(b"ab", 2**31)))},
    "invalid",
    "length",
    "A string is longer than the rest of the file; start + length may wrap around.",
)
each(
    {f"array-{V(kind).name.lower()}-2-61": value(V.ARR, array(kind, 2**61, b"\1" * 16))
     for kind in (V.U8, V.U64, V.STR)}
    | {"array-u32-2-62": value(V.ARR, array(V.U32, 2**62, b"\1" * 16))}
    | {"array-u8-max": value(V.ARR, array(V.U8, 2**64 - 1, b"\1" * 16))}
    | {"array-u8-2-40": value(V.ARR, array(V.U8, 2**40, b"\1" * 16))}
    | {"array-str-2-32": value(V.ARR, array(V.STR, 2**32 - 1))}
    | {"array-arr-2-60": value(V.ARR, array(V.ARR, 2**60, array(V.U8, 0)))},
    "invalid",
    "count",
    "An array claims more elements than bytes are left; count times size may wrap around.",
)  # fmt: skip
each(
    {f"array-empty-{V(kind).name.lower()}": value(V.ARR, array(kind, 0))
     for kind in (V.U8, V.BOOL, V.STR, V.F64)},
    "valid",
    "",
    "An array may be empty.",
)  # fmt: skip
each(
    {"array-of-arrays": value(V.ARR, array(V.ARR, 1, array(V.U8, 1, b"\1")))}
    | {"array-of-no-arrays": value(V.ARR, array(V.ARR, 0))}
    | {"array-4-deep": value(V.ARR, array(9, 1, array(9, 1, array(9, 1, array(V.U8, 1, b"\1")))))},
    "implementation-defined",
    "",
    "The format lets arrays nest, llama.cpp does not read them, and gguf-py makes them flat.",
)
fault(
    "array-5-deep",
    "implementation-defined",
    "nesting",
    "The format has no limit; we stop at 4, because a reader that recurses must stop somewhere.",
)(value(V.ARR, array(9, 1, array(9, 1, array(9, 1, array(9, 1, array(V.U8, 1, b"\1")))))))


@fault("array-1000-deep", "implementation-defined", "nesting",
       "The format has no limit; a reader that recurses without one ends its stack.")  # fmt: skip
def _(draft: FileDraft, draw: Draw) -> None:
    raw = array(V.U8, 0)
    for _ in range(1000):
        raw = array(V.ARR, 1, raw)
    draft.put(b"deep", V.ARR, raw)


@fault("value-cut", "invalid", "truncated", "The file ends inside a value.")
def _(draft: FileDraft, draw: Draw) -> None:
    draft.rows.clear()
    draft.put(b"cut", V.U64, bytes(7))


@fault("strings-one-more", "invalid", "truncated",
       "An array of strings ends with the file, and lacks one.")  # fmt: skip
def _(draft: FileDraft, draw: Draw) -> None:
    draft.rows.clear()
    draft.put(b"v", V.ARR, array(V.STR, 2, string(b"12345678")))


@fault("every-type", "valid", "", "A pair and an array of each type.")
def _(draft: FileDraft, draw: Draw) -> None:
    for kind, size in ((0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (6, 4), (10, 8), (11, 8)):
        draft.put(b"s%d" % kind, kind, b"\x81" * size)
        draft.put(b"a%d" % kind, V.ARR, array(kind, 2, b"\x81" * (2 * size)))
    draft.put(b"nan", V.F32, b"\1\0\x80\x7f")
    draft.put(b"minus", V.F64, bytes(7) + b"\x80")
