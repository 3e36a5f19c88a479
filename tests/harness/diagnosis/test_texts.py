"""Texts behind texts: what is compared of one that is empty."""

from typing import Any

import numpy as np

from lockstep.engine.quants.base import F32
from lockstep.harness.diagnosis.questions import Compared, Continued


class Words(dict[int, bytes]):
    """Pieces of a vocabulary made up for a test; the first token is a control token."""

    cleans = False

    def __getitem__(self, token: int) -> bytes:
        return self.get(token, b"")

    def shown(self, ids: list[int]) -> int:
        return next((i for i, token in enumerate(ids) if not self[token]), len(ids))


WORDS = Words({1: b"a", 2: b"\xc3", 3: b"b"})


def compared(said: bytes, free: list[int], row: list[float]) -> Compared:
    pieces: Any = WORDS
    question = Continued(words="a text", prompt=b"x", n=len(free), pieces=pieces)
    rows: list[F32] = [np.array(row, np.float32)] * len(free)
    session: Any = None
    return question.compare(said, (free, rows, None), session, 1e-3)


def test_who_writes_nothing_where_the_right_engine_writes_characters_is_not_as_it() -> None:
    """The argmax of NaN is 0, a control token."""
    assert compared(b"", [1, 3], [0, 9, 0, 1]).same.tolist() == [False]
    assert compared(b"ab", [1, 3], [0, 9, 0, 1]).same.tolist() == [True, True]


def test_an_engine_that_answers_with_control_tokens_is_as_who_writes_nothing() -> None:
    assert compared(b"", [0, 0], [np.nan] * 4).same.tolist() == [True]


def test_nothing_is_no_difference_where_a_tie_or_half_a_character_is_due() -> None:
    assert compared(b"", [1, 3], [9, 9, 0, 1]).same.tolist() == [True]
    assert compared(b"", [2, 3], [0, 1, 9, 1]).same.tolist() == []
