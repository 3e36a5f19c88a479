"""A text shown with U+FFFD that ends one token early: one run of them may be of two tokens."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from lockstep.harness.context.suite import Context
from lockstep.harness.records import Verdict
from lockstep.harness.suites.parts.text_judged import judge_text

PIECES = {0: b"", 1: b"m", 2: b"\xda", 3: b"h6"}


class Words(dict[int, bytes]):
    cleans = False


def verdicts(said: str, margin: float) -> list[Verdict]:
    """The oracle's text is m, a byte that is no character, and h6; that byte once more is the
    second likeliest there."""
    logits = np.full((3, 4), -9.0, np.float32)
    logits[0, 1], logits[1, 2], logits[2, 3], logits[2, 2] = 5, 5, 5, 5 - margin
    context: Any = SimpleNamespace(
        noise=SimpleNamespace(relative=1e-3),
        noise_on=lambda batches: 1e-3,
        verdict=partial(Context.verdict, SimpleNamespace(case="c", repro=str)),
    )
    pieces: Any = Words(PIECES)
    return list(judge_text(context, (), logits, [1, 2, 3], said.encode(), pieces))


def test_a_byte_more_of_a_tie_is_excused_and_not_called_a_text_that_ends_early() -> None:
    agreed, excused = verdicts("m\ufffd\ufffd", margin=0.001)
    assert (agreed.status, excused.status) == ("agreed", "excused")
    assert (excused.detail["step"], excused.detail["actual"]) == (2, 2)


def test_where_there_is_no_tie_it_still_ends_early() -> None:
    for said in ("m\ufffd\ufffd", "m\ufffd"):
        assert [v.status for v in verdicts(said, margin=1)] == ["agreed", "not-compared"], said


def test_a_text_without_replaced_bytes_that_ends_early_is_no_tie() -> None:
    assert [v.status for v in verdicts("m", margin=0.001)] == ["agreed", "not-compared"]
