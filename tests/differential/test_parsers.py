"""Answers of other parsers to many files at once: kinds of errors match, and a crash loses no
file."""

from collections.abc import Iterator

import pytest

from lockstep.harness.adapters.parts.parsing import Parsed, pack_files, parse_answer
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.fuzzers.gguf.grammar import alone
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
def test_messages_of_llama_cpp_map_to_our_kinds(llama_cpp: Session, name: str, kind: str) -> None:
    assert ask(llama_cpp, [alone(name)], "buffer").ending(0) == kind


def test_file_that_kills_llama_cpp_leaves_other_answers_intact(llama_cpp: Session) -> None:
    good = alone("every-type")
    found = ask(llama_cpp, [good, alone("bytes-2-40"), good, alone("key-twice")], "data")
    assert [found.ending(i) for i in range(4)] == ["accepted", "crashed", "accepted", "duplicate"]
    assert "GGML_ASSERT" in found.words[1]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("magic-wrong", "magic"), ("version-4", "version"), ("key-twice", "duplicate")),
        *(("alignment-3", "alignment"), ("value-type-13", "value"), ("type-100", "type")),
        *(("pairs-max", "truncated"), ("data-missing", "data"), ("array-u8-2-40", "hung")),
    ],
)
def test_exceptions_of_gguf_py_map_to_our_kinds(gguf_py: Session, name: str, kind: str) -> None:
    assert ask(gguf_py, [alone(name)], "file").ending(0) == kind


@pytest.mark.parametrize(("engine", "way"), [("llama.cpp", "mail"), ("gguf-py", "load")])
def test_unknown_parser_of_an_engine_is_refused(engine: str, way: str) -> None:
    with Runner().open(engine, None, EXACT) as session:
        outcome = session.ask("parse", *pack_files([b"GGUF"]), way)
    assert "way of" in str(outcome)
