"""How other parsers answer to many files at once: the same kinds, and no file lost to a crash."""

from collections.abc import Iterator

import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.adapters.parts.parsing import ENDINGS, Parsed, pack_files, parse_answer
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.fuzzers.gguf.grammar import alone, cases
from lockstep.harness.records import EXACT, Answered


@pytest.fixture(scope="module")
def llama_cpp() -> Iterator[Session]:
    with Runner().open("llama.cpp", None, EXACT) as session:
        yield session


@pytest.fixture(scope="module")
def gguf_py() -> Iterator[Session]:
    with Runner().open("gguf-py", None, EXACT) as session:
        yield session


def ask(session: Session, files: list[bytes], way: str) -> Parsed:
    outcome = session.ask("parse", *pack_files(files), way)
    assert isinstance(outcome, Answered), outcome
    return parse_answer(outcome.value, len(files))


def ours(files: list[bytes]) -> Parsed:
    with Runner().open("reference", None, EXACT) as session:
        return ask(session, files, "buffer")


@pytest.mark.parametrize("way", ["buffer", "file"])
def test_llama_cpp_reads_in_valid_files_what_we_read(llama_cpp: Session, way: str) -> None:
    chosen = [case for case in cases(1, "valid", 0, 600) if not beyond_it(case.faults)]
    files = [case.raw for case in chosen]
    theirs, mine = ask(llama_cpp, files, way), ours(files)
    assert set(theirs.endings.tolist()) == {ENDINGS.index("accepted")}
    assert theirs.digests.tolist() == mine.digests.tolist()
    assert len(set(theirs.digests.tolist())) > 500


def beyond_it(faults: tuple[str, ...]) -> bool:
    """Arrays of arrays it refuses; the other fault ends it. Both are known divergences."""
    return "product-around-zero" in faults or any(
        name.startswith("array-") and not name.startswith("array-empty") for name in faults
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("empty-file", "magic"), ("magic-wrong", "magic"), ("big-endian", "endianness")),
        *(("version-1", "version"), ("version-4", "version"), ("tensors-max", "count")),
        *(("pairs-2-63", "count"), ("pairs-one-more", "truncated"), ("key-empty", "key-empty")),
        *(("key-length-max", "length"), ("string-length-2-32", "length")),
        *(("key-twice", "duplicate"), ("name-twice", "duplicate"), ("value-type-13", "value")),
        *(("alignment-0", "alignment"), ("alignment-u64", "alignment"), ("name-64", "name-long")),
        *(("dims-5", "dims"), ("dim-negative", "dims"), ("product-2-66", "overflow")),
        *(("type-100", "type"), ("type-4", "type"), ("block-33", "block"), ("gap", "gap")),
        *(("overlap-half", "overlap"), ("data-section-missing", "data")),
        ("array-u8-2-40", "truncated"),
    ],
)
def test_llama_cpps_words_become_our_kinds(llama_cpp: Session, name: str, kind: str) -> None:
    assert ask(llama_cpp, [alone(name)], "buffer").ending(0) == kind


def test_a_file_that_ends_llama_cpp_costs_no_other_its_answer(llama_cpp: Session) -> None:
    good = alone("every-type")
    found = ask(llama_cpp, [good, alone("bytes-2-40"), good, alone("key-twice")], "data")
    assert [found.ending(i) for i in range(4)] == ["accepted", "crashed", "accepted", "duplicate"]
    assert "GGML_ASSERT" in found.words[1]


def test_gguf_py_reads_in_plain_files_what_we_read(gguf_py: Session) -> None:
    chosen = cases(1, "valid", 1, 120)[::2]  # the odd ones have nothing unusual
    files = [case.raw for case in chosen]
    theirs, mine = ask(gguf_py, files, "file"), ours(files)
    same = [a == b for a, b in zip(theirs.digests.tolist(), mine.digests.tolist(), strict=True)]
    accepted = [theirs.ending(i) == "accepted" for i in range(len(files))]
    odd = [of_its_own_size(raw) for raw in files]
    assert same == [a and not b for a, b in zip(accepted, odd, strict=True)]
    assert sum(accepted) > 50  # it lacks a type of tensor


def of_its_own_size(raw: bytes) -> bool:
    """gguf-py takes a block of Q8_1 for 40 bytes; ggml's has 36 since its sum became a half."""
    return any(t.type.name == "Q8_1" for t in GgufFile.from_bytes(raw).tensors.values())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("magic-wrong", "magic"), ("version-4", "version"), ("key-twice", "duplicate")),
        *(("alignment-3", "alignment"), ("value-type-13", "value"), ("type-100", "type")),
        *(("pairs-max", "truncated"), ("data-missing", "data"), ("array-u8-2-40", "hung")),
    ],
)
def test_gguf_pys_exceptions_become_our_kinds(gguf_py: Session, name: str, kind: str) -> None:
    assert ask(gguf_py, [alone(name)], "file").ending(0) == kind


@pytest.mark.parametrize(("engine", "way"), [("llama.cpp", "mail"), ("gguf-py", "load")])
def test_a_way_that_an_engine_does_not_have_is_not_guessed(engine: str, way: str) -> None:
    with Runner().open(engine, None, EXACT) as session:
        outcome = session.ask("parse", *pack_files([b"GGUF"]), way)
    assert "way of" in str(outcome)
