"""State files: valid files are read, damage gives one error, and claimed sizes allocate nothing."""

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.errors import MalformedFile, Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.states.fields import STATE_KINDS
from lockstep.engine.states.file import SavedState, read_state
from lockstep.engine.states.fit import ContextLimits, find_misfits, shape_of_model
from lockstep.harness.synth.small import SMALL

WIDTH, CELLS = 8, 3  # sizes of the small models
CONTEXT, SEQUENCE = b"nsgg" + struct.pack("<I", 10), b"qsgg" + struct.pack("<I", 3)
TOKENS = struct.pack("<4I", 3, 5, 6, 7)


def u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def rows(kind: int, width: int, cells: int = CELLS, size: int = 4) -> bytes:
    return struct.pack("<iQ", kind, width * size) + bytes(width * size * cells)


def columns(kind: int, width: int, size: int = 4) -> bytes:
    return struct.pack("<iII", kind, size, width) + bytes(width * size * CELLS)


def cells(*positions: int, owner: int = 0) -> bytes:
    return u32(len(positions)) + b"".join(u32(each, 1, owner) for each in positions)


def named(name: bytes) -> bytes:
    return u32(len(name)) + name


def cache(n_layers: int = 2, *, transposed: bool = True, at: bytes = b"") -> bytes:
    values = columns(0, WIDTH) if transposed else rows(0, WIDTH)
    head = u32(1) + (at or cells(0, 1, 2)) + u32(int(transposed), n_layers)
    return head + rows(0, WIDTH) * n_layers + values * n_layers


def states(n_layers: int, tail: int, state: int, *, kept: int, sequence: bool = False) -> bytes:
    one = u32(1, 2, 0) if sequence else u32(1, 2, 1, 0)
    return one + u32(0, n_layers) + rows(0, tail, 1) * kept + rows(0, state, 1) * kept


FILES = {
    "attention": CONTEXT + TOKENS + named(b"llama") + cache(),
    "not transposed": CONTEXT + TOKENS + named(b"llama") + cache(transposed=False),
    "window": CONTEXT + TOKENS + named(b"gemma3") + cache(1) * 2,
    "recurrent": CONTEXT + TOKENS + named(b"mamba") + states(2, 96, 128, kept=2),
    "hybrid": CONTEXT + TOKENS + named(b"lfm2") + cache(1) + states(2, 48, 0, kept=1),
    "nothing kept": CONTEXT + TOKENS + named(b"bert"),
    "sequence": SEQUENCE + TOKENS + cache(),
    "sequence of states": SEQUENCE + TOKENS + states(2, 96, 128, kept=2, sequence=True),
    "empty": CONTEXT + u32(0) + named(b"llama") + u32(1, 0),
    "two streams": CONTEXT + TOKENS + named(b"llama") + u32(2) + cache()[4:] * 2,
    "keys alone": SEQUENCE + TOKENS + u32(1) + cells(0, 1, 2) + u32(0, 2) + rows(0, 40) * 2,
    "in two dimensions": SEQUENCE + TOKENS + u32(1, 2) + u32(4, 1, 0, 0, 9, 0) * 2 + u32(0, 1)
    + rows(8, 32, 2, 34 // 32 + 0) * 0 + (struct.pack("<iQ", 8, 34) + bytes(68)) * 2,
}  # fmt: skip
PARTS = {
    "window": ["attention", "attention"],
    "recurrent": ["recurrent"],
    "hybrid": ["attention", "recurrent"],
    "nothing kept": [],
    "sequence of states": ["recurrent"],
}


@pytest.mark.parametrize("name", FILES)
def test_reader_finds_tokens_and_parts(name: str) -> None:
    state = read_state(FILES[name])
    assert state.tokens.tolist() == ([] if name == "empty" else [5, 6, 7])
    assert [part.kind for part in state.parts] == PARTS.get(name, ["attention"])
    assert state.layout.extra == (name == "in two dimensions")
    assert state.n_bytes == len(FILES[name])


def test_reader_finds_the_offsets_of_rows() -> None:
    (part,) = read_state(FILES["sequence"]).parts
    found = [(row.name, row.index, row.width, row.n_bytes) for row in part.streams[0].rows]
    assert found == [(name, i, WIDTH, 96) for name in "kv" for i in range(2)]
    last = part.streams[0].rows[-1]
    assert last.at + last.n_bytes == len(FILES["sequence"])
    assert part.streams[0].transposed


def outcome(raw: bytes) -> SavedState | MalformedFile:
    try:
        return read_state(raw)
    except MalformedFile as error:
        return error


def n_rows(state: SavedState) -> int:
    """Return the number of tables of keys, values and states, plus one for each stream."""
    return sum(1 + len(stream.rows) for part in state.parts for stream in part.streams)


@pytest.mark.parametrize("name", FILES)
def test_reader_refuses_a_truncated_file_or_finds_fewer_tables(name: str) -> None:
    raw, whole = FILES[name], n_rows(read_state(FILES[name]))
    for n in range(len(raw)):
        found = outcome(raw[:n])
        if isinstance(found, MalformedFile):
            assert 0 <= found.offset <= n
        else:
            assert n_rows(found) < whole  # a whole file of another memory


def replaced(raw: bytes, at: int, *numbers: int) -> bytes:
    new = u32(*numbers)
    return raw[:at] + new + raw[at + len(new) :]


A = FILES["sequence"]  # 24 bytes of header, then streams, cells, position, sequences, id, ...
DAMAGED = {
    "magic": b"GGUF" + A[4:],
    "version": replaced(A, 4, 2),
    "truncated": A[:26],
    "length": replaced(A, 8, 1 << 30),
    "count": replaced(A, 36, 2),
    "architecture": CONTEXT + TOKENS + named(b"\xff\xfe") + cache(),
    "position": replaced(A, 32, 2**32 - 1),
    "sequence": replaced(A, 40, 3),
    "duplicate": SEQUENCE + TOKENS + cache(at=cells(0, 1, 1)),
    "layout": replaced(A, 68, 2),
    "type": replaced(A, 76, 4),
    "row": replaced(A, 80, 33),
    "trailing": A + b"\0",
}


def test_caches_of_deepseek4_are_not_read() -> None:
    with pytest.raises(Unsupported):
        read_state(CONTEXT + TOKENS + named(b"deepseek4") + b"DSV4" + cache())


def test_sequence_with_two_states_is_refused() -> None:
    two = u32(2) + u32(2, 1, 0) + u32(4, 1, 0) + u32(0, 2) + rows(0, 8, 2) * 4
    assert read_state(CONTEXT + TOKENS + named(b"mamba") + two.replace(u32(4, 1, 0), u32(4, 1, 1)))
    with pytest.raises(MalformedFile):
        read_state(CONTEXT + TOKENS + named(b"mamba") + two)


def test_each_kind_of_damage_has_a_file() -> None:
    assert set(DAMAGED) == set(STATE_KINDS)


@pytest.mark.parametrize("kind", DAMAGED)
def test_reader_names_the_kind_of_damage(kind: str) -> None:
    with pytest.raises(MalformedFile) as caught:
        read_state(DAMAGED[kind])
    assert caught.value.kind == kind


def test_claimed_sizes_allocate_nothing() -> None:
    numbers = [at for at in range(8, len(A) - 3, 4)]
    tracemalloc.start()
    for at in numbers:
        for claim in (2**31 - 1, 2**32 - 1):
            with pytest.raises(MalformedFile):
                read_state(replaced(A[:120], at, claim))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


# --- against a model ------------------------------------------------------------------------------


def misfits(state: SavedState, memory: str, folder: Path, **limits: object) -> set[str]:
    path = folder / "model.gguf"
    SMALL[memory](path)
    with GgufFile.open(path) as file:
        shape = shape_of_model(file)
    usual = {"n_ctx": 512, "n_sequences": 8, "n_streams": 1, "type_k": "F32", "type_v": "F32"}
    context = ContextLimits(**{**usual, "transposed": True, **limits})  # type: ignore[arg-type]
    return {each.kind for each in find_misfits(state, shape, context)}


@pytest.mark.parametrize("memory", ["attention", "window", "recurrent", "hybrid"])
def test_file_fits_only_its_own_model(memory: str, tmp_path: Path) -> None:
    assert misfits(read_state(FILES[memory]), memory, tmp_path) == set()
    other = "window" if memory == "attention" else "attention"
    assert misfits(read_state(FILES[memory]), other, tmp_path) >= {"architecture", "parts"}


WRONG = {
    "vocabulary": CONTEXT + u32(1, 64) + named(b"llama") + cache(),
    "layers": CONTEXT + TOKENS + named(b"llama") + cache(3),
    "width": CONTEXT + TOKENS + named(b"llama") + u32(1) + cells(0, 1, 2) + u32(0, 2)
    + rows(0, WIDTH) + rows(0, 4) + rows(0, WIDTH) * 2,
    "type": CONTEXT + TOKENS + named(b"llama") + u32(1) + cells(0, 1, 2) + u32(0, 2)
    + (rows(1, WIDTH, size=2) * 4),
    "sequences": CONTEXT + TOKENS + named(b"llama") + cache(at=cells(0, 1, 2, owner=9)),
    "streams": FILES["two streams"],
    "transposed": FILES["not transposed"],
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_misfit_is_named(kind: str, tmp_path: Path) -> None:
    assert kind in misfits(read_state(WRONG[kind]), "attention", tmp_path)


def test_small_context_takes_fewer_tokens_and_cells(tmp_path: Path) -> None:
    state = read_state(FILES["attention"])
    assert misfits(state, "attention", tmp_path, n_ctx=2) == {"tokens", "cells"}
    assert np.array_equal(state.parts[0].streams[0].cells.positions, [0, 1, 2])
