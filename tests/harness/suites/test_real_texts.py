"""Tokenizers that fail on long real texts, or on invalid UTF-8.

llama.cpp decodes byte sequences that Unicode forbids. Other engines need not do this.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.errors import Unsupported
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.check.check import run_suites
from lockstep.harness.diagnosis.questions import Ids
from lockstep.harness.judging.no_characters import shown_as
from lockstep.harness.records import Verdict
from lockstep.harness.suites import tokens
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.contexts import check_engine, context_of, statuses
from tests.models import written
from tests.quiet_engines import made

Change = Callable[[bytes], bytes]
OVERLONG = b"\xc0\xaf overlong"


def rewriting(name: str, change: Change) -> str:
    """Return a right engine that changes texts before it reads them."""

    def tokenize(self: Any, texts: Sequence[bytes], **flags: bool) -> list[list[int]]:
        return Reference.tokenize(self, [change(text) for text in texts], **flags)

    return made(f"texts: {name}", Reference, tokenize=tokenize)


def surrogates_as_pairs(text: bytes) -> bytes:
    """Decode WTF-8, in which one half of a surrogate pair is valid as a character."""
    try:
        return text.decode("utf-8", "surrogatepass").encode("utf-16", "surrogatepass").decode(
            "utf-16", "replace"
        ).encode()  # fmt: skip
    except UnicodeDecodeError:
        return text


WRONG: dict[str, Change] = {
    "a length in 16 bits": lambda text: text[: len(text) % 65536],
    "a buffer of 256 bytes": lambda text: text[:256],
    "lines of Unicode": lambda text: text.replace("\u2028".encode(), b"\n"),
    "vertical tabs lost": lambda text: text.replace(b"\v", b" "),
    "no more than 15 spaces": lambda text: re.sub(b" {16,}", b" " * 15, text),
    "surrogates in pairs": surrogates_as_pairs,
    "Arabic digits": lambda text: text.replace("٣".encode(), b"3"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("model"), n_layer=1, n_embd=16, n_ff=16)


def encoded(model: Path, engine: str) -> list[Verdict]:
    with context_of(model, engine=engine) as context:
        found = list(run_suites(context, ("tokens",)))
    return [v for v in found if v.summary.startswith("encode (add_special)")]


@pytest.mark.parametrize("name", WRONG)
def test_tokenizer_that_fails_on_real_texts_is_found(
    name: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = rewriting(name, WRONG[name])
    wrong = encoded(model, engine)
    assert "diverged" in statuses(wrong)
    assert max(len(v.detail.get("input", "")) for v in wrong) <= tokens.WHOLE
    monkeypatch.setattr(tokens, "MORE_TEXTS", ())
    monkeypatch.setattr(tokens, "special_texts", lambda *_: [])
    assert statuses(encoded(model, engine)) == {"agreed"}  # short texts agree


def test_long_text_has_no_merges() -> None:
    """After each merge, simple tokenizers examine every pair again. For 66,000 bytes this takes
    minutes."""
    longest = max(tokens.MORE_TEXTS, key=len)
    assert len(longest) > 65535
    assert max(map(len, longest.split())) == 1


@pytest.mark.parametrize(
    ("parses", "asked"),
    [(True, [(True, True), (True, False)]), (False, [(True, False), (False, False)])],
)
def test_long_text_uses_the_first_two_answered_flag_sets(
    parses: bool, asked: list[tuple[bool, bool]], model: Path
) -> None:
    seen: list[tuple[bool, bool]] = []

    def tokenize(
        self: Any, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        if parse_special and not parses:
            raise Unsupported("special tokens in a text")
        if any(len(text) > tokens.LONG for text in texts):
            seen.append((add_special, parse_special))
        flags = {"add_special": add_special, "parse_special": parse_special}
        return Reference.tokenize(self, texts, **flags)

    encoded(model, made(f"texts: counts long ones, {parses}", Reference, tokenize=tokenize))
    assert seen == asked


# Go reads a text as runes in this way. It is honest under BPE, where llama.cpp has U+FFFD for such
# bytes too. It is wrong if there are byte tokens, which keep the bytes.
EVERY_BYTE = rewriting("U+FFFD for every byte", lambda text: max(shown_as(text), key=len))
# wrong in any case: invalid bytes vanish
DROPPED = rewriting("dropped", lambda text: text.decode("utf-8", "ignore").encode())


def encoded_by(kind: str, engine: str, folder: Path) -> list[Verdict]:
    path = folder / f"{kind}.gguf"
    recipe = LlamaRecipe(vocab_kind=kind, n_vocab=600, n_layer=1)  # type: ignore[arg-type]
    write_llama(recipe, path)
    found = check_engine(path, engine, "tokens")
    return [v for v in found if v.summary.startswith("encode")]


def test_engine_that_replaces_bytes_as_unicode_does_is_excused_under_bpe(tmp_path: Path) -> None:
    found = encoded_by("gpt2", EVERY_BYTE, tmp_path)
    assert statuses(found) == {"excused"}
    assert all(repr(OVERLONG) in v.detail["read_with_replacements"] for v in found)


@pytest.mark.parametrize(("kind", "engine"), [("gpt2", DROPPED), ("llama", EVERY_BYTE)])
def test_engine_that_loses_bytes_with_tokens_diverges(
    kind: str, engine: str, tmp_path: Path
) -> None:
    assert statuses(encoded_by(kind, engine, tmp_path)) == {"diverged"}


def test_right_engine_needs_no_excuse(tmp_path: Path) -> None:
    assert statuses(encoded_by("gpt2", "reference", tmp_path)) == {"agreed"}


@pytest.mark.parametrize(("kept", "same"), [([1], True), ([9], False)])
def test_diagnosis_skips_an_overlong_text_only_if_bytes_were_replaced(
    kept: list[int], same: bool
) -> None:
    texts = (OVERLONG, "\ufffd\ufffd overlong".encode(), b"\xff", "\ufffd".encode())
    question = Ids(words="the ids of texts", texts=texts, flags=())
    answer = [[7], [1, 1], kept, [1]]
    said = [[1, 1], *answer[1:]]
    compared = question.compare(said, answer, None, 0.0)  # type: ignore[arg-type]
    assert compared.same.tolist() == [same, True, True, True]
