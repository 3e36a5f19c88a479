"""Acid tests of a SentencePiece tokenizer: each wrong tokenizer is named, and no other mistake."""

from pathlib import Path

import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.harness.acid.architectures.llama import TOKENIZER
from lockstep.harness.acid.read import AcidReading, read_report
from lockstep.harness.acid.report import report_for
from lockstep.harness.acid.tokens import PROMPT, SENTENCEPIECE
from lockstep.harness.acid.write import write_acid
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.catalogue.acid import TOKENS, text_of
from lockstep.harness.mutants.tokenizers import WRONG
from lockstep.harness.records import EXACT, Answered

NAMED = {
    "bos-missing": ("bos", "no BOS"),
    "bos-doubled": ("bos", "BOS twice"),
    "no-space-prefix": ("space-prefix", "no space is put before it"),
    "merges-by-rank": ("merges", "by the order of the tokens, or from the left"),
    "ties-to-the-right": ("merges-alike", "the right one"),
    "unigram-for-llama": ("merges-not-sums", "kept apart, as by the best sum of scores"),
    "no-byte-fallback": ("byte-fallback", "the unknown token"),
    "spaces-merged": ("two-spaces", "they are made one, or not merged"),
}
# harness/acid/uncovered.py says why
NOT_SEEN = (
    "leading-space-kept",
    "partial-characters-dropped",
    "specials-parsed",
    "text-ends-at-nul",
    "text-stripped",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("acid") / "acid.gguf"
    write_acid(path)
    return path


def read(engine: str, model: Path) -> AcidReading:
    return read_report(text_of(engine, model, EXACT))


@pytest.mark.parametrize("engine", NAMED)
def test_wrong_tokenizer_is_named_and_every_other_test_is_ok(engine: str, model: Path) -> None:
    assert f"mutant:{engine}" in WRONG
    reading = read(f"mutant:{engine}", model)
    assert [(a.test, a.says) for a in reading.answers if not a.ok] == [NAMED[engine]]
    assert reading.complete


@pytest.mark.parametrize("engine", NOT_SEEN)
def test_fault_that_no_test_covers_gives_ok_and_is_not_listed(engine: str, model: Path) -> None:
    assert read(f"mutant:{engine}", model).code == 0
    assert not any(engine in test.catches for test in TOKENIZER)


def test_every_listed_engine_is_tried() -> None:
    assert {name for test in TOKENIZER for name in test.catches} == {*NAMED}


def test_engine_that_writes_stored_space_marks_is_named(model: Path) -> None:
    reading = read("mutant:spaces-kept", model)
    assert reading.code == 2
    assert r"'\u2581' for spaces" in reading.problem


@pytest.mark.parametrize("parsed", [True, False])
def test_control_token_in_the_prompt_is_ok_as_token_and_as_text(model: Path, parsed: bool) -> None:
    """A chat parses the control token. A completion reads it as text."""
    with LocalSession(Adapter.member("fast"), model, EXACT) as session:
        ids = session.ask("tokenize", [PROMPT.encode()], parse_special=parsed)
        assert isinstance(ids, Answered)
        new = session.ask("greedy", ids.value[0], TOKENS)
        assert isinstance(new, Answered)
        flags = {"remove_special": True, "unparse_special": False}
        said = session.ask("detokenize", [new.value], **flags)
        assert isinstance(said, Answered)
    text = said.value[0].decode()
    assert read_report(text).code == 0
    assert ("special-tokens ok (as text" in text) is not parsed


def test_assumed_prompt_length_is_between_text_and_chat(model: Path) -> None:
    with GgufFile.open(model) as file:
        tokenizer = tokenizer_of(file.metadata)
    text, chat = (
        len(tokenizer.encode(PROMPT.encode(), add_special=False, parse_special=parsed))
        for parsed in (False, True)
    )
    assert (text + chat) / 2 == SENTENCEPIECE.n_prompt


@pytest.mark.parametrize(("quant", "there"), [("F32", True), ("BF16", True), ("Q4_0", False)])
def test_quantised_files_have_no_room_for_tokenizer_tests(quant: str, there: bool) -> None:
    tests = report_for("llama", quant).tests
    assert any(test.of_tokenizer for test in tests) is there
