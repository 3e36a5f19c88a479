"""Right texts in other forms: with the prompt, with other spaces, with fewer bytes."""

from codecs import getincrementaldecoder
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lockstep.engine.tokenizers.base import Tokenizer
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.suites.parts.text_readings import (
    Pieces,
    ends_a_character,
    readings,
    without_prompt,
)
from tests.contexts import diverged, statuses
from tests.harness.suites.test_text_alone import TextAlone, Words, text_engine, verdicts
from tests.models import builtin
from tests.quiet_engines import made

Shown = Callable[[bytes, bytes], bytes]  # prompt, text -> the shown text

HONEST: dict[str, Shown] = {
    "without spaces around it": lambda _, text: text.strip(),
    "with a space before it": lambda _, text: b" " + text,
    "behind the prompt": lambda prompt, text: prompt + text,
    "behind a space and the prompt": lambda prompt, text: b" " + prompt + text,
    "behind the prompt, without spaces around both": lambda prompt, text: (prompt + text).strip(),
    "without bytes that are no characters": lambda _, text: text.decode(errors="ignore").encode(),
    "with U+FFFD for them": lambda _, text: text.decode(errors="replace").encode(),
}
WRONG: dict[str, Shown] = {
    "behind another prompt": lambda prompt, text: prompt[::-1] + text,
    "behind the prompt without the first character": lambda prompt, text: prompt + text[1:],
    "with other letters": lambda _, text: text.swapcase(),
    "without its spaces": lambda _, text: text.replace(b" ", b""),
    "the prompt alone, then dots": lambda prompt, text: prompt + b"." * len(text),
}


@cache
def showing(name: str) -> str:
    return text_engine(name, shown=(HONEST | WRONG)[name])


@cache
def going_on(name: str, *, always: bool) -> str:
    """Return an engine that continues writing after an incomplete last character, or after every
    text if `always` is True."""

    def generate(self: Any, prompt: bytes, n: int) -> bytes:
        ids = Reference.greedy(self, self.tokenize([prompt])[0], n + 3)
        text, more = (
            b"".join(self.tokenizer.piece(t, special=False) for t in part)
            for part in (ids[:n], ids[n:])
        )
        decoder = getincrementaldecoder("utf-8")("ignore")
        decoder.decode(text)
        whole = text + more if always or decoder.getstate()[0] else text
        return whole.decode(errors="ignore").encode()

    return made(f"text: {name}", TextAlone, generate=generate)


@pytest.mark.parametrize("n", [6, 9, 12])
def test_engine_that_completes_its_last_character_is_not_accused(n: int, folder: Path) -> None:
    engine = going_on("to the end of a character", always=False)
    found = verdicts(builtin("f32", folder), engine, "text", n_steps=n)
    assert not diverged(found)


def test_engine_that_never_stops_is_accused(folder: Path) -> None:
    engine = going_on("three tokens too many", always=True)
    found = verdicts(builtin("f32", folder), engine, "text", n_steps=12)
    assert {"diverged", "not-compared"} & statuses(found), found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("model", ["f32", "q4_0"])
@pytest.mark.parametrize("name", HONEST)
def test_honest_text_in_another_form_is_not_accused(name: str, model: str, folder: Path) -> None:
    found = verdicts(builtin(model, folder), showing(name), "text", n_steps=12)
    assert not diverged(found)
    assert found[0].status == "agreed"


def test_prompt_in_the_answer_is_reported(folder: Path) -> None:
    engine = showing("behind the prompt")
    found = verdicts(builtin("f32", folder), engine, "text")
    assert found[0].summary.endswith("the engine repeats the prompt before the text")
    assert exit_code(found) == 0


@pytest.mark.parametrize("name", WRONG)
def test_wrong_text_diverges_in_any_form(name: str, folder: Path) -> None:
    found = verdicts(builtin("f32", folder), showing(name), "text", n_steps=12)
    assert "diverged" in statuses(found), found


WORDS: Any = Words({1: b"\n", 2: b"   ", 3: b"a", 4: b" a", 5: b"\xf0\x9f", 6: b"\xff", 7: b"b"})


@pytest.mark.parametrize(
    ("said", "free", "end"),
    [
        (b"ab", (1, 2, 3, 7), 4),
        (b"  ab", (2, 3, 7), 3),
        (b" ab", (3, 7), 2),
        (b"ab", (3, 6, 7), 3),
        (b"a", (6, 6), 0),
        (b"", (6, 6), 0),  # an empty text is not the text of two tokens
        (b"", (1, 2), 0),
        (b" a", (3,), 0),  # with a single token, the space may be the mistake
        (b"a", (4,), 1),
        (b"ba", (3, 7), 0),
    ],
)
def test_text_is_read_in_each_honest_way(said: bytes, free: tuple[int, ...], end: int) -> None:
    assert max(reading.end for reading in readings(said, free, WORDS)) == end


def test_prompt_is_removed_unless_the_text_repeats_it() -> None:
    assert without_prompt(b" The cat sat", b"The cat ", b" sat") == b" sat"
    assert without_prompt(b"The cat sat", b"The cat", b"The cat sat") == b"The cat sat"
    assert without_prompt(b"sat", b"\n", b"sat") == b"sat"


@dataclass(frozen=True)
class Tokens:
    """A tokenizer whose pieces are bytes, as in a vocabulary."""

    pieces: tuple[bytes, ...]

    @property
    def vocabulary(self) -> Any:
        return SimpleNamespace(n_vocab=len(self.pieces), clean_spaces=False)

    def piece(self, token: int, special: bool) -> bytes:
        return self.pieces[token]


@pytest.mark.parametrize(
    ("said", "ids", "fits"),
    [
        ("a\u00e9", (0, 1), True),  # ends the last character
        # continues until the character is complete, and drops incomplete characters
        ("ab", (0, 3, 1), True),
        ("aab", (0, 5, 0), True),  # although this is no first byte, and another byte follows
        ("abcabcabcabc", (0, 3, 1), False),  # more tokens than a character needs
        ("ab", (0, 3), False),  # no character begins here
        # all of the oracle's text is dropped, so the engine's text matches nothing
        ("b", (3, 1), False),
    ],
)
def test_incomplete_last_character_may_be_completed(
    said: str, ids: tuple[int, ...], fits: bool
) -> None:
    pieces = Pieces(
        tokenizer=cast(Tokenizer, Tokens((b"a", b"\xc3", b"\xa9", b"\x82", b"bc", b"\xf7")))
    )
    found = [one for one in readings(said.encode(), ids, pieces) if one.end == len(ids)]
    assert any(ends_a_character(one.rest, ids, pieces) for one in found) == fits
