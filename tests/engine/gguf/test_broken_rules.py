"""What is not legal in a GGUF file is refused with the kind of rule that is broken, and where."""

from struct import pack

import pytest

from lockstep.engine.errors import MalformedFile
from lockstep.engine.gguf.file import KINDS, GgufFile
from tests.engine.gguf.test_gguf_file import (
    ARR,
    BOOL,
    F32,
    HUGE,
    Q4_0,
    STR,
    U8,
    U32,
    array,
    gguf,
    nested,
    outcome,
    pair,
    tensor,
    text,
)

K = 24  # the first byte after the header
T = K + 8 + 1  # the first byte after the name of a first tensor "t"

REFUSED = [
    ("an empty file", b"", "magic", 0, "the file is empty"),
    ("old ggml as on disk", b"lmgg" + bytes(20), "magic", 0, "a ggml file, from before GGUF"),
    ("old ggjt as on disk", b"tjgg" + bytes(20), "magic", 0, "a ggjt file, from before GGUF"),
    ("old ggmf as on disk", b"fmgg" + bytes(20), "magic", 0, "a ggmf file, from before GGUF"),
    ("old ggla as on disk", b"algg" + bytes(20), "magic", 0, "a ggla file, from before GGUF"),
    ("old ggjt as spelled", b"ggjt" + bytes(20), "magic", 0, "a ggjt file, from before GGUF"),
    ("HDF5", b"\x89HDF\r\n\x1a\n", "magic", 0, "an HDF5 file"),
    ("zip", b"PK\x03\x04" + bytes(20), "magic", 0, "a zip archive"),
    ("gzip", b"\x1f\x8b\x08\0", "magic", 0, "a gzip archive"),
    ("safetensors", pack("<Q", 64) + b'{"a":', "magic", 0, "a safetensors file"),
    ("Git LFS", b"version https://git-lfs.github.com/spec/v1\n", "magic", 0, "Git LFS pointer"),
    ("HTML", b"<!DOCTYPE html>", "magic", 0, "HTML"),
    ("text", b"hello, world\n", "magic", 0, "a text file: b'hello, world"),
    ("bytes", b"\0\1\2\3\4", "magic", 0, r"not a GGUF file: it starts with b'\x00\x01\x02\x03'"),
    ("half a magic", b"GGU", "truncated", 0, "inside the magic"),
    ("only a magic", b"GGUF", "truncated", 4, "inside the version"),
    ("no second count", gguf()[:16], "truncated", 16, "the number of metadata pairs"),
    ("big-endian", b"GGUF" + pack(">IQQ", 3, 0, 0), "endianness", 4, "big-endian"),
    ("version 0", gguf(version=0), "version", 4, "version 0, expected 2 or 3"),
    ("version 1", gguf(version=1), "version", 4, "version 1, expected 2 or 3"),
    ("version 4", gguf(version=4), "version", 4, "version 4, expected 2 or 3"),
    ("huge tensors", gguf(n_tensors=HUGE), "count", 8, f"claims {HUGE} tensors"),
    ("huge pairs", gguf(n_pairs=HUGE), "count", 16, f"claims {HUGE} metadata pairs"),
    ("negative pairs", gguf(n_pairs=2**64 - 1), "count", 16, "metadata pairs"),
    ("huge array", gguf([pair(b"k", ARR, array(U8, HUGE))]), "count", K + 17, f"claims {HUGE} U8"),
    (
        "array one too long",
        gguf([pair(b"k", ARR, array(U32, 3, bytes(11)))]),
        "count",
        K + 17,
        "claims 3 U32 elements of at least 4 bytes each, but 11 bytes are left",
    ),
    (
        "array of huge strings",
        gguf([pair(b"k", ARR, array(STR, 2, text(b"") + pack("<Q", HUGE)))]),
        "length",
        K + 33,
        f"string 1 of the key 'k' claims {HUGE} bytes, but 0 are left",
    ),
    (
        "array whose last string is one byte too long",
        gguf([pair(b"k", ARR, array(STR, 1, pack("<Q", 1)))]),
        "length",
        K + 25,
        "string 0 of the key 'k' claims 1 bytes, but 0 are left",
    ),
    (
        "array that lacks a string",
        gguf([pair(b"k", ARR, array(STR, 2, text(b"12345678")))]),
        "truncated",
        K + 41,
        "the length of string 1",
    ),
    (
        "huge key",
        gguf(n_pairs=1) + pack("<Q", HUGE) + bytes(9),
        "length",
        K,
        f"the key of metadata pair 0 claims {HUGE} bytes",
    ),
    ("huge string", gguf([pair(b"k", STR, pack("<Q", HUGE))]), "length", K + 13, "claims"),
    ("empty key", gguf([pair(b"", U32, bytes(4))]), "key-empty", K, "0 bytes, expected 1 to 65535"),
    (
        "long key",
        gguf([pair(b"k" * 65536, U8, b"\0")]),
        "key-long",
        K,
        "65536 bytes, expected 1 to",
    ),
    ("key with NUL", gguf([pair(b"ab\0", U8, b"\0")]), "key-nul", K + 10, "holds a NUL"),
    ("key not UTF-8", gguf([pair(b"ab\xff", U8, b"\0")]), "key-utf8", K + 10, "is not UTF-8"),
    (
        "key twice",
        gguf([pair(b"k", U8, b"\0"), pair(b"k", U8, b"\1")]),
        "duplicate",
        K + 14,
        "the key 'k' of metadata pair 1 was there before",
    ),
    ("value type 13", gguf([pair(b"k", 13, bytes(4))]), "value", K + 9, "is 13, expected 0 to 12"),
    ("element type 13", gguf([pair(b"k", ARR, array(13, 0))]), "value", K + 13, "is 13, expected"),
    ("bool 2", gguf([pair(b"k", BOOL, b"\2")]), "bool", K + 13, "the bool 2, expected 0 or 1"),
    (
        "bool 255 in an array",
        gguf([pair(b"k", ARR, array(BOOL, 3, b"\0\1\xff"))]),
        "bool",
        K + 27,
        "element 2 of the key 'k' is the bool 255",
    ),
    ("value cut off", gguf([pair(b"k", 10, bytes(7))]), "truncated", K + 13, "8 bytes expected, 7"),
    ("nesting", gguf([pair(b"k", ARR, nested(5))]), "nesting", K + 13 + 36, "deeper than 4"),
    (
        "alignment 0",
        gguf([pair(b"general.alignment", U32, bytes(4))]),
        "alignment",
        K + 29,
        "is 0, expected a power of two",
    ),
    (
        "alignment 48",
        gguf([pair(b"general.alignment", U32, pack("<I", 48))]),
        "alignment",
        K + 29,
        "is 48, expected a power of two",
    ),
    (
        "alignment of another type",
        gguf([pair(b"general.alignment", 10, pack("<Q", 32))]),
        "alignment",
        K + 25,
        "is a U64, expected a U32",
    ),
    (
        "alignment that is an array",
        gguf([pair(b"general.alignment", ARR, array(U32, 1, pack("<I", 32)))]),
        "alignment",
        K + 25,
        "is a ARR[U32], expected a U32",
    ),
    (
        "empty name",
        gguf([], [tensor(b"", (1,), F32, 0)], 4),
        "name-empty",
        K,
        "0 bytes, expected 1",
    ),
    (
        "long name",
        gguf([], [tensor(b"n" * 64, (1,), F32, 0)], 4),
        "name-long",
        K,
        "64 bytes, expected",
    ),
    (
        "name with NUL",
        gguf([], [tensor(b"n\0", (1,), F32, 0)], 4),
        "name-nul",
        K + 9,
        "holds a NUL",
    ),
    (
        "name not UTF-8",
        gguf([], [tensor(b"\xc3", (1,), F32, 0)], 4),
        "name-utf8",
        K + 8,
        "not UTF-8",
    ),
    (
        "name twice",
        gguf([], [tensor(b"t", (1,), F32, 0), tensor(b"t", (1,), F32, 32)], 64),
        "duplicate",
        T + 24,
        "the name 't' of tensor 1 was there before",
    ),
    ("5 dims", gguf([], [tensor(b"t", (1,) * 5, F32, 0)], 4), "dims", T, "5 dimensions"),
    ("negative dim", gguf([], [tensor(b"t", (4, -1), F32, 0)], 4), "dims", T + 12, "negative: -1"),
    (
        "too many elements",
        gguf([], [tensor(b"t", (2**32, 2**31), F32, 0)], 4),
        "overflow",
        T + 12,
        "more elements than int64",
    ),
    (
        # llama.cpp refuses it too, although the last dimension makes the tensor empty.
        "too many elements before a zero",
        gguf([], [tensor(b"t", (2**32, 2**31, 0), F32, 0)], 4),
        "overflow",
        T + 12,
        "more elements than int64",
    ),
    (
        "too many bytes",
        gguf([], [tensor(b"t", (2**62,), F32, 0)], 4),
        "overflow",
        T,
        "bytes: over uint64",
    ),
    (
        "too many bytes once padded",
        gguf([], [tensor(b"t", (2**62 - 1,), F32, 0)]),
        "overflow",
        K,
        "up to the tensor 't'",
    ),
    (
        "unknown type",
        gguf([], [tensor(b"t", (1,), 43, 0)], 4),
        "type",
        T + 12,
        "the tensor 't': no",
    ),
    ("negative type", gguf([], [tensor(b"t", (1,), 2**32 - 1, 0)], 4), "type", T + 12, "'t': no"),
    ("removed type", gguf([], [tensor(b"t", (32,), 31, 0)], 4), "type", T + 12, "Q4_0_4_4) was re"),
    ("block", gguf([], [tensor(b"t", (33,), Q4_0, 0)], 64), "block", T, "33 weights, expected a"),
    ("block of none", gguf([], [tensor(b"t", (), Q4_0, 0)], 64), "block", T, "rows of 1 weights"),
    (
        "misaligned",
        gguf([], [tensor(b"t", (1,), F32, 0), tensor(b"u", (1,), F32, 4)], 64),
        "misaligned",
        T + 24 + 9 + 16,
        "at offset 4, expected 32, and offsets are multiples of 32",
    ),
    (
        "overlap",
        gguf([], [tensor(b"t", (1,), F32, 0), tensor(b"u", (1,), F32, 0)], 64),
        "overlap",
        T + 24 + 9 + 16,
        "'u' is at offset 0, expected 32",
    ),
    (
        "gap",
        gguf([], [tensor(b"t", (1,), F32, 0), tensor(b"u", (1,), F32, 64)], 128),
        "gap",
        T + 24 + 9 + 16,
        "'u' is at offset 64, expected 32",
    ),
    ("a gap first", gguf([], [tensor(b"t", (1,), F32, 32)], 64), "gap", T + 16, "32, expected 0"),
    (
        "no padding of the header",
        gguf([], [tensor(b"t", (1,), F32, 0)])[:-1],
        "data",
        T + 24,
        "before its data section",
    ),
    (
        "data one byte short",
        gguf([], [tensor(b"t", (1,), F32, 0)], 3),
        "data",
        64,
        "the data of tensor 't': 4 bytes expected, 3 left",
    ),
    (
        # ggml_nbytes wraps around and says 0 here: ggml-org/llama.cpp pull request 27200
        "2^60 weights",
        gguf([], [tensor(b"t", (2**60,), 12, 0)], 32),
        "data",
        64,
        f"{2**60 // 256 * 144} bytes expected, 32 left",
    ),
]


@pytest.mark.parametrize(
    ("data", "kind", "offset", "says"),
    [row[1:] for row in REFUSED],
    ids=[row[0] for row in REFUSED],
)
def test_a_broken_rule_is_named_and_located(data: bytes, kind: str, offset: int, says: str) -> None:
    with pytest.raises(MalformedFile) as refusal:
        GgufFile.from_bytes(data)
    assert (refusal.value.kind, refusal.value.offset) == (kind, offset)
    assert says in str(refusal.value)
    assert str(refusal.value).endswith(f"(at byte {offset})")


def test_every_kind_of_refusal_has_a_file() -> None:
    assert {row[2] for row in REFUSED} == KINDS


CLAIMS = [row for row in REFUSED if row[0].startswith(("huge", "negative pairs", "array of huge"))]


@pytest.mark.parametrize("data", [row[1] for row in CLAIMS], ids=[row[0] for row in CLAIMS])
def test_a_claim_of_a_huge_size_allocates_nothing(data: bytes) -> None:
    assert outcome(data) in {"count", "length"}
