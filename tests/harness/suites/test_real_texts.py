"""Tokenizers that fail on what real texts have, and short ones have not, are found."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from lockstep.engine.errors import Unsupported
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.check.check import open_plan, run_suites
from lockstep.harness.records import Verdict
from lockstep.harness.suites import tokens
from tests.harness.check.test_check import plan_for
from tests.models import written


class Rewrites(Reference):
    """Right, but for what it makes of a text before."""

    before: Callable[[bytes], bytes]

    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        read = [type(self).before(text) for text in texts]
        return super().tokenize(read, add_special=add_special, parse_special=parse_special)


def surrogates_as_pairs(text: bytes) -> bytes:
    """Decodes WTF-8, in which half a pair is a character."""
    try:
        return text.decode("utf-8", "surrogatepass").encode("utf-16", "surrogatepass").decode(
            "utf-16", "replace"
        ).encode()  # fmt: skip
    except UnicodeDecodeError:
        return text


WRONG: dict[str, Callable[[bytes], bytes]] = {
    "a length in 16 bits": lambda text: text[: len(text) % 65536],
    "a buffer of 256 bytes": lambda text: text[:256],
    "lines of Unicode": lambda text: text.replace("\u2028".encode(), b"\n"),
    "vertical tabs lost": lambda text: text.replace(b"\v", b" "),
    "no more than 15 spaces": lambda text: re.sub(b" {16,}", b" " * 15, text),
    "surrogates in pairs": surrogates_as_pairs,
    "Arabic digits": lambda text: text.replace("٣".encode(), b"3"),
}
for name, change in WRONG.items():
    type("Made", (Rewrites,), {"before": staticmethod(change)}, name=f"texts: {name}")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("model"), n_layer=1, n_embd=16, n_ff=16)


def encoded(model: Path, engine: str) -> list[Verdict]:
    opened = open_plan(plan_for(model, engine=engine), lambda _: None)
    try:
        found = list(run_suites(opened.context, ("tokens",)))
    finally:
        opened.close()
    return [v for v in found if v.summary.startswith("encode (add_special)")]


@pytest.mark.parametrize("name", WRONG)
def test_a_tokenizer_that_fails_on_real_texts_is_found(
    name: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = encoded(model, f"texts: {name}")
    assert "diverged" in {v.status for v in wrong}
    assert max(len(v.detail.get("input", "")) for v in wrong) <= tokens.WHOLE
    monkeypatch.setattr(tokens, "MORE_TEXTS", ())
    monkeypatch.setattr(tokens, "special_texts", lambda *_: [])
    assert {v.status for v in encoded(model, f"texts: {name}")} == {"agreed"}  # on short ones


def test_the_long_text_has_nothing_to_merge_in_it() -> None:
    """Simple tokenizers look at every pair again behind each merge: minutes, for 66,000 bytes."""
    longest = max(tokens.MORE_TEXTS, key=len)
    assert len(longest) > 65535
    assert max(map(len, longest.split())) == 1


class Counts(Reference, name="texts: counts long ones"):
    """Remembers the flags that a long text came with."""

    seen: ClassVar[list[tuple[bool, bool]]] = []

    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        self.seen += [(add_special, parse_special)] * any(len(t) > tokens.LONG for t in texts)
        return super().tokenize(texts, add_special=add_special, parse_special=parse_special)


class CountsUnparsed(Counts, name="texts: counts long ones, parses none"):
    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        if parse_special:
            raise Unsupported("special tokens in a text")
        return super().tokenize(texts, add_special=add_special, parse_special=parse_special)


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        (Counts, [(True, True), (True, False)]),
        (CountsUnparsed, [(True, False), (False, False)]),
    ],
)
def test_the_long_text_is_asked_with_the_first_two_sets_of_flags_that_are_answered(
    engine: type[Counts], flags: list[tuple[bool, bool]], model: Path
) -> None:
    Counts.seen.clear()
    encoded(model, engine.name)
    assert Counts.seen == flags
