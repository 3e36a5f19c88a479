"""Questions with an item that breaks the engine. Only this item has no answer, and all other items
get their answers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.harness.adapters.reference import Reference
from lockstep.harness.context.one_by_one import MAX_FAILURES, MAX_WAITS, UNASKED, ask_apart
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import Status
from tests.contexts import check_engine, diverged
from tests.models import builtin

TEXTS = [b"a" * n for n in (3, 1, 70_000, 2, 9, 4, 5)]


class Asked:
    """A question that fails if `is_bad` is True for one of its items. It counts how often it is
    asked."""

    def __init__(self, *bad: bytes, status: Status = "crashed") -> None:
        self.bad, self.status, self.times = bad, status, 0

    def __call__(self, items: list[bytes]) -> Sequence[int]:
        self.times += 1
        if any(item in self.bad for item in items):
            raise NoAnswer(self.status, "it broke", {})
        return [len(item) for item in items]


def test_items_without_failures_are_asked_once() -> None:
    ask = Asked()
    found = ask_apart(ask, TEXTS)
    assert [found.answers[i] for i in range(len(TEXTS))] == [len(text) for text in TEXTS]
    assert (found.failures, ask.times) == ({}, 1)


def test_longest_item_is_isolated_early() -> None:
    ask = Asked(TEXTS[2])
    found = ask_apart(ask, TEXTS)
    assert set(found.failures) == {2}
    assert sorted(found.answers) == [0, 1, 3, 4, 5, 6]
    assert ask.times == 4  # all items, the shortest, all but the longest, the longest


def test_short_failing_items_are_found() -> None:
    found = ask_apart(Asked(TEXTS[3], TEXTS[6]), TEXTS)
    assert set(found.failures) == {3, 6}
    assert len(found.answers) == len(TEXTS) - 2


def test_question_without_any_answered_item_raises_its_error() -> None:
    ask = Asked(*TEXTS)
    with pytest.raises(NoAnswer, match="it broke"):
        ask_apart(ask, TEXTS)
    assert ask.times == 2


@pytest.mark.parametrize(("status", "most"), [("crashed", MAX_FAILURES), ("timed-out", MAX_WAITS)])
def test_failures_are_limited_and_unanswered_items_are_named(status: Status, most: int) -> None:
    texts = [b"%03d" % n for n in range(100)]
    found = ask_apart(Asked(*texts[1:], status=status), texts)
    named = [error for error in found.failures.values() if not error.detail.get(UNASKED)]
    assert len(named) <= most
    assert len(found.failures) + len(found.answers) == 100
    assert len(found.failures) > most


class TooLong(Reference, name="one by one: no long texts, and others wrong"):
    """An engine that fails on texts beyond 1000 bytes, and on id 7."""

    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        if any(len(text) > 1000 for text in texts):
            raise ZeroDivisionError("it is too long")
        found = super().tokenize(texts, add_special=add_special, parse_special=parse_special)
        wrong = texts.index(b"Hello, world!") if b"Hello, world!" in texts else None
        return [[*ids, 5] if i == wrong else ids for i, ids in enumerate(found)]

    def detokenize(
        self, ids: Sequence[Sequence[int]], *, remove_special: bool, unparse_special: bool
    ) -> list[bytes]:
        if [7] in [list(row) for row in ids]:
            raise ZeroDivisionError("no 7")
        return super().detokenize(
            ids, remove_special=remove_special, unparse_special=unparse_special
        )


class NoBlocks(Reference, name="one by one: no Q8_0"):
    times = 0

    def dequantize(self, type_name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        if type_name == "Q8_0":
            NoBlocks.times += 1
            raise ZeroDivisionError("no blocks")
        return super().dequantize(type_name, raw)


def test_type_that_breaks_the_engine_costs_only_that_type(tmp_path: Path) -> None:
    NoBlocks.times = 0
    found = check_engine(builtin("q8_0", tmp_path), NoBlocks, "dequant")
    assert [v.status for v in found].count("crashed") == NoBlocks.times == 1
    assert [v.summary.split(":")[0] for v in found if v.status == "agreed"] == ["F32"]
    assert exit_code(found) == 3


def test_suite_finds_a_wrong_text_though_another_breaks_the_engine(tmp_path: Path) -> None:
    found = check_engine(builtin("f32", tmp_path), TooLong, "tokens")
    crashed = [v for v in found if v.status == "crashed"]
    # one text, which is asked once, and one row of ids for each pair of flags
    assert len(crashed) == 5
    assert "b'a\\x0ba\\x0ba" in crashed[0].summary
    assert sum(v.status == "agreed" for v in found) >= 4  # all kinds of decoding
    assert any("Hello, world" in v.summary for v in diverged(found))
    assert exit_code(found) == 1
