"""Engines of text that stop early, write nothing, or read characters differently."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest

from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import Verdict
from lockstep.harness.suites.decode import PROMPT
from lockstep.harness.suites.parts import no_text
from lockstep.harness.suites.parts.misread import READINGS, halves
from lockstep.harness.suites.parts.no_text import must_write, no_text_at_all
from lockstep.harness.suites.parts.text_judged import ENDED
from tests.contexts import statuses
from tests.harness.suites.test_text_alone import (
    TextAlone,
    Words,
    text_engine,
    text_verdicts,
    verdicts,
)
from tests.models import builtin
from tests.quiet_engines import made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builtin("f32", tmp_path_factory.mktemp("models"))


def test_text_that_ends_early_is_compared_up_to_its_end(model: Path) -> None:
    made("text: of two tokens", TextAlone, write=lambda _, p: b"".join(p[:2]))
    short = verdicts(model, "text: of two tokens", "text")
    assert [v.status for v in short] == ["agreed", "not-compared", "not-compared", "agreed"]
    assert short[1].detail[ENDED] == 2


@pytest.mark.parametrize("n", [1, 2])
def test_early_end_and_a_wrong_text_elsewhere_diverge(n: int, model: Path) -> None:
    wrong = text_engine(
        f"{n} tokens of another prompt",
        read=lambda prompt: prompt if prompt == PROMPT else prompt.swapcase(),
        n=n,
    )
    found = verdicts(model, wrong, "text")
    assert [v.status for v in found[:2]] == ["agreed", "not-compared"]
    assert "diverged" in statuses(found), found


def test_engine_that_ends_at_once_after_one_prompt_is_not_accused(model: Path) -> None:
    ends = text_engine(
        "none behind one", shown=lambda prompt, text: b"" if prompt == PROMPT else text
    )
    found = verdicts(model, ends, "text")
    assert exit_code(found) == 3
    assert [v.status for v in found] == ["not-compared", "agreed", "agreed"]


@pytest.mark.parametrize("more", [None, b"~~~"])
def test_text_without_its_last_token_is_compared_except_for_its_end(
    more: bytes | None, model: Path
) -> None:
    def write(_: Any, pieces: list[bytes]) -> bytes:
        return b"".join([*pieces[:-1], b""] if more is None else [*pieces, more])

    engine = made(f"text: one token off, {more!r}", TextAlone, write=write)
    found = verdicts(model, engine, "text", prompt=b"The cat")
    assert exit_code(found) == 3
    assert "not-compared" in statuses(found)


# --- bytes that are no characters -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "margin", "expected"),
    [
        # one run of signs may come from two tokens
        ("m\ufffd\ufffd", 0.001, ["agreed", "excused"]),
        ("m\ufffd\ufffd", 1, ["agreed", "not-compared"]),
        ("m\ufffd", 1, ["agreed", "not-compared"]),
        ("m", 0.001, ["agreed", "not-compared"]),
    ],
)
def test_extra_byte_of_a_tie_is_not_called_an_early_end(
    said: str, margin: float, expected: list[str]
) -> None:
    """The oracle writes three tokens: "m", the byte 0xDA (alone not a character), and "h6".

    The second most likely third token is the byte 0xDA again.
    """
    rows = {1: 5.0}, {2: 5.0}, {3: 5.0, 2: 5.0 - margin}
    pieces = Words({0: b"", 1: b"m", 2: b"\xda", 3: b"h6"})
    limits = {"noise": 1e-3, "more": 1e-3}
    found = text_verdicts(said.encode(), *rows, free=[1, 2, 3], pieces=pieces, **limits)
    assert [v.status for v in found] == expected
    if "excused" in expected:
        assert (found[1].detail["step"], found[1].detail["actual"]) == (2, 2)


# --- nothing at all -------------------------------------------------------------------------------

PIECES = {0: b"", 1: b"\n", 2: b" ", 3: b"cat", 4: b" dog", 5: b"<end>", 6: b"\xe2\x96"}
ENDS = 5  # this token has a text, and ends a text


class Pieces(dict[int, bytes]):
    tokenizer = SimpleNamespace(vocabulary=SimpleNamespace(eog=frozenset([ENDS])))


@pytest.mark.parametrize(
    ("rows", "written"),
    [
        ([{4: 5.0}], b"dog"),
        ([{2: 5.0}, {3: 5.0}], b"cat"),
        ([{1: 5.0}, {3: 5.0}], b""),
        ([{2: 5.0}, {1: 5.0}, {3: 5.0}], b""),
        ([{4: 5.0, 1: 4.99}], b""),
        ([{ENDS: 5.0}, {3: 5.0}], b""),
        ([{0: 5.0}, {3: 5.0}], b""),
        ([{6: 5.0}, {6: 5.0}], b""),
    ],
)
def test_engine_must_write_the_text_before_any_end_of_text_or_line(
    rows: Sequence[dict[int, float]], written: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are the oracle's logits before each of its tokens. Missing logits are -9."""
    logits = np.full((len(rows), len(PIECES)), -9.0, np.float32)
    for row, given in zip(logits, rows, strict=True):
        row[list(given)] = list(given.values())
    answers = {"tokenize": [[1, 2]], "greedy": logits.argmax(axis=1).tolist()}
    context: Any = SimpleNamespace(
        ask=lambda _, question, *args: answers[question],
        oracle=None,
        n_steps=len(rows),
        facts=SimpleNamespace(decoder_start=None),
        subject_info=SimpleNamespace(chat_only=False),
        noise_on=lambda batches: 0.01,
    )
    monkeypatch.setattr(no_text, "oracles_logits", lambda context, batches: logits)
    monkeypatch.setattr(no_text, "Pieces", SimpleNamespace(of=lambda context: Pieces(PIECES)))
    assert must_write(context, b"The") == written


SEVERAL = [b",", b"are", b"", b"and", b"and"]


@pytest.mark.parametrize(
    ("honest", "said", "diverges"),
    [
        (SEVERAL, b"", True),
        ([b"."] * 5, b"", False),  # an engine may stop at a text with which all begin
        ([b"", b"", b"", b"are", b"and"], b"", False),
        (SEVERAL, b"x", False),  # texts that the engine writes are compared instead
    ],
)
def test_engine_without_text_diverges_if_honest_beginnings_differ(
    honest: Sequence[bytes], said: bytes, diverges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`honest` holds the beginnings of text that every honest engine writes after the five
    prompts."""
    each = iter(honest)
    monkeypatch.setattr(no_text, "must_write", lambda context, prompt: next(each))
    context: Any = SimpleNamespace(
        ask=lambda *_: said,
        subject=None,
        n_steps=8,
        prompt=b"Once",
        verdict=lambda suite, status, text, detail, key: SimpleNamespace(status=status),
    )
    found: Verdict | None = no_text_at_all(context)
    assert (found and found.status) == ("diverged" if diverges else None)


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


@pytest.mark.parametrize("name", WRONG)
def test_engine_with_wrong_characters_diverges(name: str, model: Path) -> None:
    found = verdicts(model, text_engine(name, read=WRONG[name]), "text")
    assert found[-1].status == "diverged", found


def test_engine_that_reads_characters_correctly_is_not_accused(model: Path) -> None:
    found = verdicts(model, text_engine("as it is"), "text")
    assert statuses(found) <= {"agreed", "excused"}, found


@pytest.mark.parametrize("read", READINGS)
def test_every_way_to_read_characters_leaves_plain_words_unchanged(
    read: Callable[[str], bytes],
) -> None:
    assert read("The cat, 2 + 2") == b"The cat, 2 + 2"
