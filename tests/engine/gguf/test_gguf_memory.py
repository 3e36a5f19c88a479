"""Reading never needs several times a file's size in memory, even for the costliest contents."""

import tracemalloc
from struct import pack

import pytest

from lockstep.engine.errors import MalformedFile
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.adapters.parts.parsing import allowed_memory
from tests.engine.gguf.test_gguf_file import ARR, BOOL, STR, U8, array, gguf, pair, tensor, text

# so many that an object for each would be many times ROOM; tracing more would be slow
N = 10_000
ROOM = 1 << 14  # bytes beyond twice the file's size: less than two bytes for each of N


def numbered(n: int) -> bytes:
    return b"%05x" % n


WIDE = "\N{LLAMA}".encode()
DEAR = {
    "texts that are empty": lambda: [pair(b"k", ARR, array(STR, N, bytes(8 * N)))],
    "texts of one letter": lambda: [pair(b"k", ARR, array(STR, N, text("\u2581".encode()) * N))],
    "one long text whose letters take four bytes": lambda: [
        pair(b"k", STR, text(b"a" * 64 * N + WIDE))
    ],
    "a list with one of those": lambda: [
        pair(b"k", ARR, array(STR, 1, text(b"a" * 64 * N + WIDE)))
    ],
    "arrays of one number": lambda: [
        pair(b"k", ARR, array(ARR, N, array(U8, 1, b"\1") * N))
    ],
    "arrays four deep": lambda: [
        pair(b"k", ARR, array(ARR, N, array(ARR, 1, array(ARR, 1, array(U8, 0))) * N))
    ],
    "arrays of nothing": lambda: [pair(b"k", ARR, array(ARR, N, array(U8, 0) * N))],
    "truth values": lambda: [pair(b"k", ARR, array(BOOL, 16 * N, bytes(16 * N)))],
    "numbers": lambda: [pair(b"k", ARR, array(U8, 16 * N, bytes(16 * N)))],
    "pairs": lambda: [pair(numbered(n), U8, b"\1")
                      for n in range(N)],
}  # fmt: skip


def taken(data: bytes) -> int:
    """Return the peak allocation while reading, in bytes."""
    tracemalloc.start()
    try:
        GgufFile.from_bytes(data)
    except MalformedFile:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize("name", DEAR)
def test_metadata_pairs_take_no_more_memory_than_their_bytes(name: str) -> None:
    data = gguf(DEAR[name]())
    assert len(data) > 8 * N
    assert taken(data) < 2 * len(data) + ROOM


def test_many_tensors_take_no_more_memory_than_their_bytes() -> None:
    data = gguf([], [tensor(numbered(n), (0,), 0, 0) for n in range(N)])
    file = GgufFile.from_bytes(data)
    assert len(file.tensors) == N
    assert taken(data) < 2 * len(data) + ROOM


@pytest.mark.parametrize("name", ["texts of one letter", "arrays four deep", "pairs"])
def test_truncated_files_take_no_more_memory(name: str) -> None:
    data = gguf(DEAR[name]())[:-1]
    assert taken(data) < 2 * len(data) + ROOM


def test_claimed_size_is_not_allocated_ahead() -> None:
    """The file claims as many pairs as its bytes could hold, but has none."""
    n = 16 * N
    data = b"GGUF" + pack("<IQQ", 3, 0, n // 14) + bytes(n)
    assert taken(data) < ROOM


def test_object_per_entry_takes_many_times_the_memory() -> None:
    """A reader that decodes every entry would fail the other tests of this file."""
    data = gguf(DEAR["texts of one letter"]())
    tracemalloc.start()
    kept = GgufFile.from_bytes(data).metadata["k"].data
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(kept) == N
    assert peak > allowed_memory("reference", len(data)) - (16 << 20)


def test_key_lookup_decodes_nothing() -> None:
    file = GgufFile.from_bytes(gguf([pair(b"k", ARR, array(STR, N, bytes(8 * N)))]))
    tracemalloc.start()
    try:
        assert "k" in file.metadata
        assert "l" not in file.metadata
        assert 3 not in file.metadata
        assert tracemalloc.get_traced_memory()[1] < N
    finally:
        tracemalloc.stop()
