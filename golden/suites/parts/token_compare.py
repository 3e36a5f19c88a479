"""Comparison of answers about texts, for both kinds of token goldens."""

from collections.abc import Sequence
from itertools import compress
from typing import Any

from lockstep.golden.suites.base import Verdicts
from lockstep.harness.records import Verdict
from lockstep.harness.suites.tokens import with_left_out


def compare_tokens(
    what: str,
    names: Sequence[str],
    want: Sequence[Any],
    got: Sequence[Any],
    verdict: Verdicts,
    fit: Sequence[bool] = (),
) -> Verdict:
    """Return one verdict on all cases; it shows the difference with the shortest expected answer.

    names: the cases' names; want, got: their ids, or texts as hex or base64. fit: a flag for each
    case, False if the engine cannot take the text; such cases are skipped.
    """
    if len(got) != len(want):
        text = f"{what}: {len(got)} answers to {len(want)} questions"
        return verdict("diverged", text, key=f"{what}/count")
    rows = list(compress(zip(names, want, got, strict=True), fit or [True] * len(want)))
    wrong = [row for row in rows if row[1] != row[2]]
    if not wrong:
        found = verdict("agreed", f"{what}: {len(rows)} cases are the same")
        return with_left_out(found, len(want) - len(rows))
    name, expected, actual = min(wrong, key=lambda row: len(row[1]))
    text = (
        f"{what}: {len(wrong)} of {len(rows)} cases differ; {name} gives {str(actual)[:80]}, "
        f"expected {str(expected)[:80]}"
    )
    detail = {"id": name, "expected": expected, "actual": actual, "mismatched": len(wrong)}
    return with_left_out(verdict("diverged", text, detail, key=what), len(want) - len(rows))


def text_of(raw: bytes) -> str | None:
    """Return the text; None for invalid UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
