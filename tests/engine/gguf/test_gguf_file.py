"""The GGUF reader accepts legal files, and refuses illegal files with the right kind and place."""

import gc
import tracemalloc
from pathlib import Path
from struct import pack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.engine.errors import MalformedFile
from lockstep.engine.gguf.file import KINDS, GgufFile, ValueType

BOOL, STR, ARR, U8, U32, I64 = 7, 8, 9, 0, 4, 11
F32, Q4_0 = 0, 2
HUGE = 2**60


def text(raw: bytes) -> bytes:
    return pack("<Q", len(raw)) + raw


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + pack("<I", kind) + value


def tensor(name: bytes, ne: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + pack(f"<I{len(ne)}qIQ", len(ne), *ne, kind, offset)


def gguf(
    pairs: list[bytes] = [],  # noqa: B006  (never changed)
    tensors: list[bytes] = [],  # noqa: B006
    data: int = 0,
    *,
    version: int = 3,
    n_pairs: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """Return a hand-made file; `data` is the number of bytes after the padding of the header."""
    head = b"GGUF" + pack(
        "<IQQ",
        version,
        len(tensors) if n_tensors is None else n_tensors,
        len(pairs) if n_pairs is None else n_pairs,
    )
    body = head + b"".join(pairs) + b"".join(tensors)
    return body + bytes(-len(body) % alignment if tensors else 0) + bytes(data)


def array(element: int, n: int, data: bytes = b"") -> bytes:
    return pack("<IQ", element, n) + data


def nested(depth: int) -> bytes:
    """Return an array of arrays: `depth` levels with one element each, then three bytes."""
    inner = array(U8, 3, b"\1\2\3")
    for _ in range(depth - 1):
        inner = array(ARR, 1, inner)
    return inner


VALID = gguf(
    [
        pair(b"general.alignment", U32, pack("<I", 16)),
        pair(b"a.string", STR, text("grün".encode())),
        pair(b"an.array", ARR, array(STR, 2, text(b"x") + text(b""))),
        pair(b"deep", ARR, nested(2)),
        pair(b"flags", ARR, array(BOOL, 3, b"\1\0\1")),
        pair(b"flag", BOOL, b"\1"),
        pair(b"count", I64, pack("<q", -5)),
    ],
    [
        tensor(b"first", (4, 3), F32, 0),
        tensor(b"second", (32, 2), Q4_0, 48),
        tensor(b"empty", (0,), F32, 96),
        tensor(b"scalar", (), F32, 96),
    ],
    100,  # the last tensor has four bytes and needs no padding
    alignment=16,
)


# --- legal files ----------------------------------------------------------------------------


def test_a_file_shows_its_metadata_and_tensors() -> None:
    file = GgufFile.from_bytes(VALID)
    assert (file.version, file.alignment, file.data_offset) == (3, 16, len(VALID) - 100)
    assert {key: value.type_name for key, value in file.metadata.items()} == {
        "general.alignment": "U32",
        "a.string": "STR",
        "an.array": "ARR[STR]",
        "deep": "ARR[ARR]",
        "flags": "ARR[BOOL]",
        "flag": "BOOL",
        "count": "I64",
    }
    assert file.metadata["a.string"].data == "grün"
    assert file.metadata["an.array"].data == ["x", ""]
    assert file.metadata["deep"].data[0].data.tolist() == [1, 2, 3]
    assert file.metadata["flags"].data.tolist() == [True, False, True]
    assert file.metadata["flag"].data is True
    assert file.metadata["count"].data == -5
    rows = [(t.name, t.ne, t.type.name, t.offset, t.n_bytes) for t in file.tensors.values()]
    assert rows == [
        ("first", (4, 3), "F32", 0, 48),
        ("second", (32, 2), "Q4_0", 48, 36),
        ("empty", (0,), "F32", 96, 0),
        ("scalar", (), "F32", 96, 4),
    ]
    assert (file.tensors["first"].shape, file.tensors["first"].n_elements) == ((3, 4), 12)
    assert (file.tensors["scalar"].shape, file.tensors["scalar"].n_elements) == ((), 1)


@pytest.mark.parametrize(
    "data",
    [
        gguf(version=2),
        gguf(version=3),
        gguf([pair(b"k" * 65535, U8, b"\0")]),
        gguf([pair(b"k", ARR, nested(4))]),
        gguf([pair(b"k", ARR, array(ARR, 0))]),
        gguf([], [tensor(b"n" * 63, (1,), F32, 0)], 4),
        gguf([], [tensor(b"t", (0, 2**62, 2**62), F32, 0)]),
        gguf([], [tensor(b"t", (1,), F32, 0)], 1000),
        gguf([pair(b"general.alignment", U32, pack("<I", 1))], [tensor(b"t", (1,), F32, 0)], 4),
    ],
    ids=[
        "version 2",
        "version 3",
        "longest key",
        "deepest array",
        "no inner arrays",
        "longest name",
        "empty tensor",
        "bytes after the data",
        "alignment of one",
    ],
)
def test_limits_are_inclusive(data: bytes) -> None:
    GgufFile.from_bytes(data)


def test_non_utf8_string_value_loses_nothing() -> None:
    raw = b"\xff\xed\xa0\x80ok\x00"
    file = GgufFile.from_bytes(gguf([pair(b"k", STR, text(raw))]))
    assert file.metadata["k"].data.encode("utf-8", "surrogateescape") == raw


# --- views and the map ----------------------------------------------------------------------


def test_raw_is_a_read_only_view_that_survives_close(tmp_path: Path) -> None:
    body = bytes(range(32))
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf([], [tensor(b"t", (8,), F32, 0)]) + body)
    with GgufFile.open(path) as file:
        view = file.raw("t")
        assert not view.flags.owndata
        assert not view.flags.writeable
        with pytest.raises(KeyError):
            file.raw("u")
    gc.collect()
    assert view.tobytes() == body
    with pytest.raises(ValueError, match="closed"):
        file.raw("t")
    file.close()  # a second time does no harm


def test_arrays_of_numbers_outlive_the_map(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(VALID)
    with GgufFile.open(path) as file:
        flags = file.metadata["flags"].data
    del file
    gc.collect()
    assert flags.tolist() == [True, False, True]


def test_an_empty_tensor_has_an_empty_view() -> None:
    assert GgufFile.from_bytes(VALID).raw("empty").shape == (0,)


def test_open_and_from_bytes_refuse_the_same_files(tmp_path: Path) -> None:
    for index, data in enumerate([b"", VALID[:100], b"not a model"]):
        path = tmp_path / f"{index}.gguf"
        path.write_bytes(data)
        with pytest.raises(MalformedFile) as mapped:
            GgufFile.open(path)
        with pytest.raises(MalformedFile) as held:
            GgufFile.from_bytes(data)
        assert (mapped.value.kind, str(mapped.value)) == (held.value.kind, str(held.value))


# --- hostile bytes --------------------------------------------------------------------------


def outcome(data: bytes) -> str:
    """Return "accepted" or the kind of refusal, after checking that memory is in proportion to the
    file."""
    tracemalloc.start()
    try:
        file = GgufFile.from_bytes(data)
        assert all(file.raw(t.name).nbytes == t.n_bytes for t in file.tensors.values())
        return "accepted"
    except MalformedFile as refusal:
        return refusal.kind
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**20


def test_a_file_cut_off_anywhere_is_malformed() -> None:
    GgufFile.from_bytes(VALID)
    for n in range(len(VALID)):
        with pytest.raises(MalformedFile) as refusal:
            GgufFile.from_bytes(VALID[:n])
        assert refusal.value.kind in KINDS


@settings(derandomize=True, max_examples=400, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(VALID) - 1),
            st.sampled_from([b"\0", b"\1", b"\x7f", b"\xff", b"\xff" * 8, b"\0" * 4, b"GGUF"])
            | st.binary(min_size=1, max_size=9),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_changed_bytes_are_read_or_refused(
    changes: list[tuple[int, bytes]],
) -> None:
    data = bytearray(VALID)
    for at, new in changes:
        data[at : at + len(new)] = new
    assert outcome(bytes(data)) in {"accepted", *KINDS}


def test_single_byte_changes_reach_most_of_the_rules() -> None:
    seen = set()
    for at in range(len(VALID)):
        for value in (0, 2, 0x7F, 0xFF, VALID[at] ^ 1):
            changed = VALID[:at] + bytes([value]) + VALID[at + 1 :]
            seen.add(outcome(changed))
    assert seen <= {"accepted", *KINDS}
    # Big endian, deeper nesting and a second name need changes of more than one byte. A tensor that
    # one byte makes longer than the file overlaps the next tensor first. No byte of a length makes
    # a name longer than the limit but not longer than the file.
    out_of_reach = {"endianness", "nesting", "duplicate", "truncated", "data"}
    assert KINDS - seen <= out_of_reach | {"key-long", "name-long"}


def test_value_types_have_the_ids_of_the_format() -> None:
    order = "U8 I8 U16 I16 U32 I32 F32 BOOL STR ARR U64 I64 F64"
    assert [kind.name for kind in sorted(ValueType)] == order.split()
    assert sorted(ValueType) == list(range(13))


def test_every_number_type_is_read_as_numpy_reads_it() -> None:
    types = ["<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4"]
    for kind, dtype in [*enumerate(types), (10, "<u8"), (11, "<i8"), (12, "<f8")]:
        raw = bytes(range(0x3A, 0x4A))
        expected = np.frombuffer(raw, dtype)
        n = len(expected)
        data = gguf(
            [pair(b"a", ARR, array(kind, n, raw)), pair(b"s", kind, raw[: expected.itemsize])]
        )
        file = GgufFile.from_bytes(data)
        assert file.metadata["a"].data.dtype == expected.dtype
        assert np.array_equal(file.metadata["a"].data, expected)
        assert file.metadata["s"].data == expected[0]
        assert type(file.metadata["s"].data) in (int, float)
