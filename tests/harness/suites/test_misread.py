"""Prompts beyond ASCII: an engine that reads characters otherwise writes another text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest

from lockstep.harness.adapters.reference import Reference
from lockstep.harness.suites.parts.misread import READINGS, halves
from tests.harness.suites.test_text_alone import TextAlone, verdicts
from tests.models import builtin
from tests.quiet_engines import made

Read = Callable[[bytes], bytes]


def low_half(text: bytes) -> bytes:
    return "".join(chr(ord(each) & 0xFFFF) for each in text.decode()).encode("utf-8", "replace")


WRONG: dict[str, Read] = {
    "halves of UTF-16 as characters": lambda text: halves(text.decode()),
    "sixteen bits of each character": low_half,
    "composed": lambda text: normalize("NFC", text.decode()).encode(),
    "compatible forms": lambda text: normalize("NFKC", text.decode()).encode(),
    "decomposed": lambda text: normalize("NFD", text.decode()).encode(),
    "without joiners": lambda text: text.replace("\u200d".encode(), b""),
    "plain quotes": lambda text: text.replace("\u201c".encode(), b'"').replace(
        "\u201d".encode(), b'"'
    ),
    "ends of lines as two": lambda text: text.replace(b"\n", b"\r\n"),
    "the upper bit lost": lambda text: bytes(each & 127 for each in text),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builtin("f32", tmp_path_factory.mktemp("models"))


def reading(name: str, read: Read) -> str:
    def generate(self: Any, prompt: bytes, n: int) -> bytes:
        ids = Reference.greedy(self, self.tokenize([read(prompt)])[0], n)
        return b"".join(self.tokenizer.piece(token, special=False) for token in ids)

    return made(f"text: {name}", TextAlone, generate=generate)


@pytest.mark.parametrize("name", WRONG)
def test_an_engine_that_reads_characters_otherwise_diverges(name: str, model: Path) -> None:
    found = verdicts(model, reading(name, WRONG[name]), "text")
    assert found[-1].status == "diverged", found


def test_one_that_reads_them_as_they_are_is_accused_of_nothing(model: Path) -> None:
    found = verdicts(model, reading("as it is", bytes), "text")
    assert {verdict.status for verdict in found} <= {"agreed", "excused"}, found


@pytest.mark.parametrize("read", READINGS)
def test_every_reading_leaves_plain_words_alone(read: Callable[[str], bytes]) -> None:
    assert read("The cat, 2 + 2") == b"The cat, 2 + 2"
