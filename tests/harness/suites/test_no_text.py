"""Engines that write nothing: which of them could be honest."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.harness.records import Verdict
from lockstep.harness.suites.parts import no_text
from lockstep.harness.suites.parts.no_text import must_write, no_text_at_all

PIECES = {0: b"", 1: b"\n", 2: b" ", 3: b"cat", 4: b" dog", 5: b"<end>", 6: b"\xe2\x96"}
ENDS = 5  # has a text, and ends one


class Pieces(dict[int, bytes]):
    tokenizer = SimpleNamespace(vocabulary=SimpleNamespace(eog=frozenset([ENDS])))


def begins(monkeypatch: pytest.MonkeyPatch, *rows: dict[int, float]) -> bytes:
    """rows: the oracle's logits before each of its tokens, others are -9."""
    logits = np.full((len(rows), len(PIECES)), -9.0, np.float32)
    for row, given in zip(logits, rows, strict=True):
        for token, value in given.items():
            row[token] = value
    free = logits.argmax(axis=1).tolist()
    answers = {"tokenize": [[1, 2]], "greedy": free}
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
    return must_write(context, b"The")


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
def test_an_engine_must_write_what_comes_before_any_end_of_a_text_or_a_line(
    rows: Sequence[dict[int, float]], written: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert begins(monkeypatch, *rows) == written


def verdict(monkeypatch: pytest.MonkeyPatch, honest: Sequence[bytes], said: bytes) -> Any:
    """honest: what must be written behind the five prompts."""
    each = iter(honest)
    monkeypatch.setattr(no_text, "must_write", lambda context, prompt: next(each))
    context: Any = SimpleNamespace(
        ask=lambda *_: said,
        subject=None,
        n_steps=8,
        prompt=b"Once",
        verdict=lambda suite, status, text, detail, key: SimpleNamespace(status=status, text=text),
    )
    found: Verdict | None = no_text_at_all(context)
    return found


def test_one_that_writes_nothing_where_honest_texts_begin_in_several_ways_diverges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = verdict(monkeypatch, [b",", b"are", b"", b"and", b"and"], b"")
    assert found.status == "diverged"
    assert "chats alone" in found.text


@pytest.mark.parametrize("honest", [[b"."] * 5, [b"", b"", b"", b"are", b"and"]])
def test_one_that_may_stop_at_a_text_that_all_begin_with_is_not_accused(
    honest: Sequence[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verdict(monkeypatch, honest, b"") is None


def test_one_that_writes_anything_is_held_against_the_oracle_instead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert verdict(monkeypatch, [b",", b"are", b"", b"and", b"and"], b"x") is None
