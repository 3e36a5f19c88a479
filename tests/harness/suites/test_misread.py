"""Prompts beyond ASCII: an engine that reads characters otherwise writes another text."""

import re
from collections.abc import Callable
from pathlib import Path
from unicodedata import normalize

import pytest

from lockstep.harness.suites.parts.misread import READINGS, halves
from tests.contexts import statuses
from tests.harness.suites.test_text_alone import text_engine, verdicts
from tests.models import builtin

Read = Callable[[bytes], bytes]


def low_half(text: bytes) -> bytes:
    return "".join(chr(ord(each) & 0xFFFF) for each in text.decode()).encode("utf-8", "replace")


WRONG: dict[str, Read] = {
    "Latin-1": lambda text: text.decode("latin-1").encode(),
    "halves of UTF-16, as JavaScript's split has them": lambda text: re.sub(
        "[\U00010000-\U0010ffff]", "\ufffd\ufffd", text.decode()
    ).encode(),
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


@pytest.mark.parametrize("name", WRONG)
def test_an_engine_that_reads_characters_otherwise_diverges(name: str, model: Path) -> None:
    found = verdicts(model, text_engine(name, read=WRONG[name]), "text")
    assert found[-1].status == "diverged", found


def test_one_that_reads_them_as_they_are_is_accused_of_nothing(model: Path) -> None:
    found = verdicts(model, text_engine("as it is"), "text")
    assert statuses(found) <= {"agreed", "excused"}, found


@pytest.mark.parametrize("read", READINGS)
def test_every_reading_leaves_plain_words_alone(read: Callable[[str], bytes]) -> None:
    assert read("The cat, 2 + 2") == b"The cat, 2 + 2"
