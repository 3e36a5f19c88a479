"""Files of our GGUF writer, read back by our reader, gguf-py and llama.cpp."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile, Value
from lockstep.harness.synth.gguf_writer import Tensor, Typed, gguf_bytes, write_gguf

METADATA: dict[str, Typed] = {
    "general.architecture": ("STR", "llama"),
    "u8": ("U8", 255),
    "i8": ("I8", -128),
    "u16": ("U16", 65535),
    "i16": ("I16", -32768),
    "u32": ("U32", 2**32 - 1),
    "i32": ("I32", -(2**31)),
    "f32": ("F32", 0.5),
    "yes": ("BOOL", True),
    "no": ("BOOL", False),
    "str": ("STR", "grün \U0001f99c"),
    "empty": ("STR", ""),
    "u64": ("U64", 2**64 - 1),
    "i64": ("I64", -(2**63)),
    "f64": ("F64", 1e300),
    "bools": ("ARR[BOOL]", [True, False]),
    "strings": ("ARR[STR]", ["a", "", "ü"]),
    "floats": ("ARR[F32]", np.array([1.5, -0.0, np.inf], np.float32)),
    "ints": ("ARR[I32]", [1, -2, 3]),
    "bytes": ("ARR[U8]", np.arange(5, dtype=np.uint8)),
    "longs": ("ARR[U64]", [2**63]),
}
RAW = (np.arange(2 * 36, dtype=np.int64) * 37 % 251).astype(np.uint8)
TENSORS: list[Tensor] = [
    ("f32", (4, 3), "F32", np.arange(12, dtype=np.float32).reshape(3, 4)),
    ("f16", (5,), "F16", np.arange(5, dtype=np.float16)),
    ("i32", (3,), "I32", np.array([1, -2, 3], np.int32)),
    ("q4_0", (32, 4), "Q4_0", RAW),
]


def chunks(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def plain(value: Value) -> Any:
    return value.data.tolist() if isinstance(value.data, np.ndarray) else value.data


def expected(typed: Typed) -> Any:
    data = typed[1]
    return data.tolist() if isinstance(data, np.ndarray) else data


# --- our reader -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [1, 8, 32, 4096])
def test_file_reads_back_unchanged(tmp_path: Path, version: int, alignment: int) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, METADATA, TENSORS, version=version, alignment=alignment)
    with GgufFile.open(path) as file:
        assert (file.version, file.alignment) == (version, alignment)
        for key, typed in METADATA.items():
            assert (file.metadata[key].type_name, plain(file.metadata[key])) == (
                typed[0],
                expected(typed),
            )
        added = [] if alignment == 32 else ["general.alignment"]
        assert list(file.metadata) == [*METADATA, *added]
        assert [(t.name, t.ne, t.type.name) for t in file.tensors.values()] == [
            row[:3] for row in TENSORS
        ]
        for name, _, _, source in TENSORS:
            assert isinstance(source, np.ndarray)
            assert file.raw(name).tobytes() == source.tobytes()


def test_arrays_of_arrays_read_back() -> None:
    data = gguf_bytes({"k": ("ARR[ARR[ARR[I32]]]", [[[1, 2], []], []])})
    outer = GgufFile.from_bytes(data).metadata["k"]
    assert [[plain(leaf) for leaf in middle.data] for middle in outer.data] == [[[1, 2], []], []]


def test_file_that_was_read_can_be_written_again_unchanged() -> None:
    nested: dict[str, Typed] = {"nested": ("ARR[ARR[STR]]", [["a"], ["b", "c"]])}
    first = gguf_bytes({**METADATA, **nested}, TENSORS, alignment=64)
    file = GgufFile.from_bytes(first)
    tensors: list[Tensor] = [
        (t.name, t.ne, t.type.name, file.raw(t.name)) for t in file.tensors.values()
    ]
    assert gguf_bytes(file.metadata, tensors, alignment=file.alignment) == first


def test_a_string_that_is_not_utf8_survives_the_round_trip() -> None:
    data = gguf_bytes({"k": ("STR", b"\xff\xfe"), "a": ("ARR[STR]", [b"\x80", "ok"])})
    assert gguf_bytes(GgufFile.from_bytes(data).metadata) == data


def test_chunks_of_any_size_give_the_same_bytes(tmp_path: Path) -> None:
    whole = gguf_bytes(METADATA, TENSORS)
    for size in (1, 7, 1000):
        path = tmp_path / f"{size}.gguf"
        streamed: list[Tensor] = [
            (name, ne, kind, chunks(source.tobytes(), size))  # type: ignore[union-attr]
            for name, ne, kind, source in TENSORS
        ]
        write_gguf(path, METADATA, streamed)
        assert path.read_bytes() == whole


def test_chunks_are_requested_one_tensor_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    on_disk = []

    def large() -> Iterator[bytes]:
        for _ in range(64):
            part = next(tmp_path.iterdir())
            on_disk.append(part.stat().st_size)
            yield bytes(2**16)

    write_gguf(path, {}, [("t", (2**20,), "F32", large())])
    # most of the data was written before the last chunk was requested
    assert on_disk[-1] > 32 * 2**16
    assert GgufFile.open(path).tensors["t"].n_bytes == 2**22


# --- other readers --------------------------------------------------------------------------


@pytest.mark.parametrize("alignment", [32, 64])
def test_gguf_py_agrees_on_keys_values_and_tensors(tmp_path: Path, alignment: int) -> None:
    gguf = pytest.importorskip("gguf", reason="gguf-py was not asked about our files")
    path = tmp_path / "a.gguf"
    write_gguf(path, METADATA, TENSORS, alignment=alignment)
    theirs = gguf.GGUFReader(path)
    ours = GgufFile.open(path)
    keys = [key for key in theirs.fields if not key.startswith("GGUF.")]
    assert keys == list(ours.metadata)
    names = {"UINT": "U", "INT": "I", "FLOAT": "F", "STRING": "STR", "ARRAY": "ARR", "BOOL": "BOOL"}
    for key in keys:
        field = theirs.fields[key]
        assert field.contents() == plain(ours.metadata[key])
        types = [
            names[kind.name.rstrip("0123456789")] + kind.name.lstrip("UINTFLOASRGYB")
            for kind in field.types
        ]
        assert ours.metadata[key].type_name == (
            types[0] if len(types) == 1 else f"{types[0]}[{types[1]}]"
        )
    assert theirs.data_offset == ours.data_offset
    assert len(theirs.tensors) == len(ours.tensors)
    for row, info in zip(theirs.tensors, ours.tensors.values(), strict=True):
        assert (row.name, tuple(row.shape.tolist())) == (info.name, info.ne)
        assert (row.tensor_type.name, row.n_bytes) == (info.type.name, info.n_bytes)
        assert row.data_offset == ours.data_offset + info.offset
        assert row.data.tobytes() == ours.raw(info.name).tobytes()


# --- determinism and refusals ---------------------------------------------------------------


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_gguf(tmp_path / name, METADATA, TENSORS)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes() == gguf_bytes(METADATA, TENSORS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (("U8", 256), "'k' cannot be written as U8"),
        (("U32", -1), "'k' cannot be written as U32"),
        (("U32", 1.0), "'k' cannot be written as U32"),
        (("U32", True), "True is a bool"),
        (("BOOL", 1), "1 is a int"),
        (("STR", 5), "5 is a int"),
        (("F32", 1e300), "'k' cannot be written as F32"),
        (("F99", 1), "no value type named 'F99' (known: U8, "),
        (("ARR", [1]), "no value type named 'ARR'"),
        (("ARR[F32", [1.0]), "the bracket"),
        (("ARR[I32]", [2**31]), "'k' cannot be written as ARR[I32]"),
        (("ARR[I32]", np.zeros(2, np.int64)), "the array is 1-dimensional int64"),
        (("ARR[F32]", np.zeros((2, 2), np.float32)), "the array is 2-dimensional float32"),
        (("ARR[I32]", [True]), "True is a bool"),
        (("ARR[STR]", "abc"), "expected an array of strings, got one string"),
        (("ARR[I32]", 5), "'k' cannot be written as ARR[I32]"),
    ],
)
def test_a_value_that_does_not_fit_its_type_is_refused(typed: Typed, says: str) -> None:
    with pytest.raises(ValueError, match="cannot be written") as refusal:
        gguf_bytes({"k": typed})
    assert says in str(refusal.value)


@pytest.mark.parametrize("key", ["", "a\0b", "k" * 65536])
def test_key_that_readers_refuse_is_not_written(key: str) -> None:
    with pytest.raises(ValueError, match="is not a name of 1 to 65535 bytes"):
        gguf_bytes({key: ("U8", 0)})


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (("", (1,), "F32", bytes(4)), "is not a name of 1 to 63 bytes"),
        (("n" * 64, (1,), "F32", bytes(4)), "is not a name of 1 to 63 bytes"),
        (("t", (1, 1, 1, 1, 1), "F32", bytes(4)), "at most 4 dimensions"),
        (("t", (-1,), "F32", b""), "at most 4 dimensions of at least 0"),
        (("t", (33,), "Q4_0", b""), "not a multiple of 32"),
        (("t", (2,), "F32", bytes(7)), "takes 8 bytes, got 7"),
        (("t", (2,), "F32", [bytes(4), bytes(5)]), "takes 8 bytes, got more than 8"),
        (("t", (2, 3), "F32", np.zeros((2, 3), np.float32)), "got float32 of shape (2, 3)"),
        (("t", (2,), "F32", np.zeros(2)), "got float64 of shape (2,)"),
        (("t", (32,), "Q4_0", np.zeros(32, np.float32)), "got float32"),
    ],
)
def test_tensor_that_does_not_fit_is_refused_and_leaves_no_file(
    tmp_path: Path, tensor: Tensor, says: str
) -> None:
    with pytest.raises(ValueError, match=r".") as refusal:
        write_gguf(tmp_path / "a.gguf", {}, [tensor])
    assert says in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"old")

    def broken() -> Iterator[bytes]:
        yield bytes(4)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="broke"):
        write_gguf(path, {}, [("t", (2,), "F32", broken())])
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_full_disk_error_names_the_file(tmp_path: Path) -> None:
    def full() -> Iterator[bytes]:
        yield b"1"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left") as error:
        write_gguf(tmp_path / "a.gguf", {}, [("t", (3,), "I8", full())])
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(tmp_path / "a.gguf"))
    assert not list(tmp_path.iterdir())


def test_oversized_source_is_not_read_to_its_end() -> None:
    source = iter([bytes(4)] * 100)
    with pytest.raises(ValueError, match="takes 8 bytes, got more than 8"):
        gguf_bytes({}, [("t", (2,), "F32", source)])
    assert len(list(source)) == 97


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="same name"):
        gguf_bytes({}, [("t", (1,), "F32", bytes(4))] * 2)


def test_an_unknown_tensor_type_is_refused() -> None:
    with pytest.raises(Unsupported, match="Q9_9"):
        gguf_bytes({}, [("t", (1,), "Q9_9", bytes(4))])


def test_invalid_versions_and_alignments_are_refused() -> None:
    with pytest.raises(ValueError, match="version 1, expected 2 or 3"):
        gguf_bytes({}, version=1)
    for alignment in (0, 48, -32):
        with pytest.raises(ValueError, match=f"alignment {alignment}, expected a power of two"):
            gguf_bytes({}, alignment=alignment)
    with pytest.raises(ValueError, match="U32 64, but the file is written with alignment 32"):
        gguf_bytes({"general.alignment": ("U32", 64)})
