"""Refusals of illegal GGUF files: the error names the kind of rule and the place."""

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

REFUSED: tuple[tuple[str, bytes, str, int], ...] = (
    ("an empty file", b"", "magic", 0),
    ("old ggml as on disk", b"lmgg" + bytes(20), "magic", 0),
    ("old ggjt as on disk", b"tjgg" + bytes(20), "magic", 0),
    ("old ggmf as on disk", b"fmgg" + bytes(20), "magic", 0),
    ("old ggla as on disk", b"algg" + bytes(20), "magic", 0),
    ("old ggjt as spelled", b"ggjt" + bytes(20), "magic", 0),
    ("HDF5", b"\x89HDF\r\n\x1a\n", "magic", 0),
    ("zip", b"PK\x03\x04" + bytes(20), "magic", 0),
    ("gzip", b"\x1f\x8b\x08\0", "magic", 0),
    ("safetensors", pack("<Q", 64) + b'{"a":', "magic", 0),
    ("Git LFS", b"version https://git-lfs.github.com/spec/v1\n", "magic", 0),
    ("HTML", b"<!DOCTYPE html>", "magic", 0),
    ("text", b"hello, world\n", "magic", 0),
    ("bytes", b"\0\1\2\3\4", "magic", 0),
    ("half a magic", b"GGU", "truncated", 0),
    ("only a magic", b"GGUF", "truncated", 4),
    ("no second count", gguf()[:16], "truncated", 16),
    ("big-endian", b"GGUF" + pack(">IQQ", 3, 0, 0), "endianness", 4),
    ("version 0", gguf(version=0), "version", 4),
    ("version 1", gguf(version=1), "version", 4),
    ("version 4", gguf(version=4), "version", 4),
    ("huge tensors", gguf(n_tensors=HUGE), "count", 8),
    ("huge pairs", gguf(n_pairs=HUGE), "count", 16),
    ("negative pairs", gguf(n_pairs=2**64 - 1), "count", 16),
    ("huge array", gguf([pair(b"k", ARR, array(U8, HUGE))]), "count", K + 17),
    ("array one too long", gguf([pair(b"k", ARR, array(U32, 3, bytes(11)))]), "count", K + 17),
    ("array of huge strings", gguf([pair(b"k", ARR, array(STR, 2, text(b"") + pack("<Q", HUGE)))]),
     "length", K + 33),
    ("array whose last string is one byte too long",
     gguf([pair(b"k", ARR, array(STR, 1, pack("<Q", 1)))]), "length", K + 25),
    ("array that lacks a string", gguf([pair(b"k", ARR, array(STR, 2, text(b"12345678")))]),
     "truncated", K + 41),
    ("huge key", gguf(n_pairs=1) + pack("<Q", HUGE) + bytes(9), "length", K),
    ("huge string", gguf([pair(b"k", STR, pack("<Q", HUGE))]), "length", K + 13),
    ("empty key", gguf([pair(b"", U32, bytes(4))]), "key-empty", K),
    ("long key", gguf([pair(b"k" * 65536, U8, b"\0")]), "key-long", K),
    ("key with NUL", gguf([pair(b"ab\0", U8, b"\0")]), "key-nul", K + 10),
    ("key not UTF-8", gguf([pair(b"ab\xff", U8, b"\0")]), "key-utf8", K + 10),
    ("key twice", gguf([pair(b"k", U8, b"\0"), pair(b"k", U8, b"\1")]), "duplicate", K + 14),
    ("value type 13", gguf([pair(b"k", 13, bytes(4))]), "value", K + 9),
    ("element type 13", gguf([pair(b"k", ARR, array(13, 0))]), "value", K + 13),
    ("bool 2", gguf([pair(b"k", BOOL, b"\2")]), "bool", K + 13),
    ("bool 255 in an array", gguf([pair(b"k", ARR, array(BOOL, 3, b"\0\1\xff"))]), "bool", K + 27),
    ("value cut off", gguf([pair(b"k", 10, bytes(7))]), "truncated", K + 13),
    ("nesting", gguf([pair(b"k", ARR, nested(5))]), "nesting", K + 13 + 36),
    ("alignment 0", gguf([pair(b"general.alignment", U32, bytes(4))]), "alignment", K + 29),
    ("alignment 48", gguf([pair(b"general.alignment", U32, pack("<I", 48))]), "alignment", K + 29),
    ("alignment of another type", gguf([pair(b"general.alignment", 10, pack("<Q", 32))]),
     "alignment", K + 25),
    ("alignment that is an array",
     gguf([pair(b"general.alignment", ARR, array(U32, 1, pack("<I", 32)))]), "alignment", K + 25),
    ("empty name", gguf([], [tensor(b"", (1,), F32, 0)], 4), "name-empty", K),
    ("long name", gguf([], [tensor(b"n" * 64, (1,), F32, 0)], 4), "name-long", K),
    ("name with NUL", gguf([], [tensor(b"n\0", (1,), F32, 0)], 4), "name-nul", K + 9),
    ("name not UTF-8", gguf([], [tensor(b"\xc3", (1,), F32, 0)], 4), "name-utf8", K + 8),
    ("name twice", gguf([], [tensor(b"t", (1,), F32, 0), tensor(b"t", (1,), F32, 32)], 64),
     "duplicate", T + 24),
    ("5 dims", gguf([], [tensor(b"t", (1,) * 5, F32, 0)], 4), "dims", T),
    ("negative dim", gguf([], [tensor(b"t", (4, -1), F32, 0)], 4), "dims", T + 12),
    ("too many elements", gguf([], [tensor(b"t", (2**32, 2**31), F32, 0)], 4), "overflow", T + 12),
    # llama.cpp refuses it too, although the last dimension makes the tensor empty.
    ("too many elements before a zero", gguf([], [tensor(b"t", (2**32, 2**31, 0), F32, 0)], 4),
     "overflow", T + 12),
    ("too many bytes", gguf([], [tensor(b"t", (2**62,), F32, 0)], 4), "overflow", T),
    ("too many bytes once padded", gguf([], [tensor(b"t", (2**62 - 1,), F32, 0)]), "overflow", K),
    ("unknown type", gguf([], [tensor(b"t", (1,), 43, 0)], 4), "type", T + 12),
    ("negative type", gguf([], [tensor(b"t", (1,), 2**32 - 1, 0)], 4), "type", T + 12),
    ("removed type", gguf([], [tensor(b"t", (32,), 31, 0)], 4), "type", T + 12),
    ("block", gguf([], [tensor(b"t", (33,), Q4_0, 0)], 64), "block", T),
    ("block of none", gguf([], [tensor(b"t", (), Q4_0, 0)], 64), "block", T),
    ("misaligned", gguf([], [tensor(b"t", (1,), F32, 0), tensor(b"u", (1,), F32, 4)], 64),
     "misaligned", T + 24 + 9 + 16),
    ("overlap", gguf([], [tensor(b"t", (1,), F32, 0), tensor(b"u", (1,), F32, 0)], 64),
     "overlap", T + 24 + 9 + 16),
    ("gap", gguf([], [tensor(b"t", (1,), F32, 0), tensor(b"u", (1,), F32, 64)], 128),
     "gap", T + 24 + 9 + 16),
    ("a gap first", gguf([], [tensor(b"t", (1,), F32, 32)], 64), "gap", T + 16),
    ("no padding of the header", gguf([], [tensor(b"t", (1,), F32, 0)])[:-1], "data", T + 24),
    ("data one byte short", gguf([], [tensor(b"t", (1,), F32, 0)], 3), "data", 64),
    # ggml_nbytes wraps around and says 0 here: ggml-org/llama.cpp pull request 27200
    ("2^60 weights", gguf([], [tensor(b"t", (2**60,), 12, 0)], 32), "data", 64),
)  # fmt: skip


def test_a_broken_rule_is_named_and_located() -> None:
    found = {}
    for name, data, _, _ in REFUSED:
        with pytest.raises(MalformedFile) as refusal:
            GgufFile.from_bytes(data)
        found[name] = refusal.value.kind, refusal.value.offset
    assert found == {name: (kind, offset) for name, _, kind, offset in REFUSED}


def test_every_kind_of_refusal_has_a_file() -> None:
    assert {row[2] for row in REFUSED} == KINDS


CLAIMS = [row for row in REFUSED if row[0].startswith(("huge", "negative pairs", "array of huge"))]


def test_huge_claimed_size_allocates_nothing() -> None:
    assert {outcome(data) for _, data, *_ in CLAIMS} == {"count", "length"}
