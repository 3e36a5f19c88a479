"""Comparison of texts that continue a prompt, including empty texts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.quants.base import F32
from lockstep.harness.cli.diagnosis import diagnosis_lines
from lockstep.harness.diagnosis.compared import Compared
from lockstep.harness.diagnosis.diagnosis import Diagnosed, Diagnosis, Rows, status_of
from lockstep.harness.diagnosis.questions import Continued
from tests.harness.check.test_check import plan_for
from tests.models import builtin


class Words(dict[int, bytes]):
    """The pieces of a vocabulary for a test. The first token is a control token."""

    cleans = False

    def __getitem__(self, token: int) -> bytes:
        return self.get(token, b"")

    def count_shown(self, ids: list[int]) -> int:
        return next((i for i, token in enumerate(ids) if not self[token]), len(ids))


WORDS = Words({1: b"a", 2: b"\xc3", 3: b"b"})


def compared(said: bytes, free: list[int], row: list[float]) -> Compared:
    pieces: Any = WORDS
    question = Continued(words="a text", prompt=b"x", n=len(free), pieces=pieces)
    rows: list[F32] = [np.array(row, np.float32)] * len(free)
    session: Any = None
    return question.compare(said, (free, rows, None), session, 1e-3)


def test_empty_text_is_not_the_same_as_characters_of_the_right_engine() -> None:
    """The argmax of NaN is 0, which is a control token."""
    assert compared(b"", [1, 3], [0, 9, 0, 1]).same.tolist() == [False]
    assert compared(b"ab", [1, 3], [0, 9, 0, 1]).same.tolist() == [True, True]


def test_empty_text_matches_control_tokens_of_an_engine() -> None:
    assert compared(b"", [0, 0], [np.nan] * 4).same.tolist() == [True]


def test_missing_text_is_no_difference_at_a_tie_or_half_a_character() -> None:
    assert compared(b"", [1, 3], [9, 9, 0, 1]).same.tolist() == [True]
    assert compared(b"", [2, 3], [0, 1, 9, 1]).same.tolist() == []


def test_tokens_after_a_tie_are_counted_as_not_compared() -> None:
    """A text of Gemma 3 with a wrong rope base diverged at ties, and an earlier version called all
    its answers right."""
    assert compared(b"bb", [3, 1, 1], [0, 9, 0, 9]).not_compared == 2
    assert compared(b"baa", [3, 1, 1], [0, 9, 0, 9]).not_compared == 0
    assert compared(b"bb", [3, 1, 1], [0, 9, 0, 1]).not_compared == 0


@pytest.mark.parametrize(
    ("rows", "status", "code", "said"),
    [
        ((Rows(unit="tokens", compared=9, right=9),), "right", 0, "all of these answers are"),
        (
            (Rows(unit="tokens", compared=9, right=9, not_compared=5),),
            "right",
            0,
            "all compared answers are",
        ),
        ((Rows(unit="tokens", compared=0, right=0, not_compared=5),), "not-compared", 3, ""),
    ],
)
def test_texts_after_early_ties_blame_no_engine(
    rows: tuple[Rows, ...], status: str, code: int, said: str, tmp_path: Path
) -> None:
    assert status_of(rows) == status
    found = Diagnosed(of=(Diagnosis(aspect="runs", status=status_of(rows), rows=rows),), missing=())
    assert found.exit_code == code
    text = "\n".join(diagnosis_lines(plan_for(builtin("f32", tmp_path)), found))
    assert said in text
    assert ("no mistake to name" in text) == bool(said)
    assert ("5 more tokens were not compared" in text) == (rows[0].not_compared == 5)
    assert "overflow" not in text
