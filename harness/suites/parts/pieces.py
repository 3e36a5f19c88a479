"""Texts of ids for a report, from our own tokenizer."""

from collections.abc import Sequence
from typing import Any

from lockstep.engine.errors import EngineError
from lockstep.engine.tokenizers.base import Tokenizer
from lockstep.harness.context.suite import Context
from lockstep.harness.report.text import printable

# ids of one side; characters of a piece, because a token may have megabytes
MOST_IDS, LONGEST = 200, 80


def pieces_of(context: Context, ids: Sequence[int]) -> list[str | None] | None:
    """Return a text for each id, or None for an id that does not exist. Return None instead of the
    list if our tokenizer cannot read the vocabulary."""
    if not context.facts.has_vocabulary:
        return None
    try:
        tokenizer = context.tokenizer
    except EngineError:
        return None
    return [piece_of(tokenizer, id_) for id_ in ids]


def piece_of(tokenizer: Tokenizer, token: int) -> str | None:
    if not 0 <= token < len(tokenizer.pieces):
        return None
    try:
        text = printable(tokenizer.piece(token, special=True).decode(errors="backslashreplace"))
    except EngineError:
        return None
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


def sides(context: Context, expected: Sequence[int], actual: Sequence[int]) -> dict[str, Any]:
    """Return the ids of both engines with their texts, beginning a few ids before the first
    difference."""
    pairs = zip(expected, actual, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(actual)))
    start = max(0, same - MOST_IDS // 4)
    found: dict[str, Any] = {"start": start}
    for name, ids in (("expected", expected), ("actual", actual)):
        shown = [int(i) for i in ids[start : start + MOST_IDS]]
        found[name] = {"ids": shown, "pieces": pieces_of(context, shown), "count": len(ids)}
    return found


def two_choices(oracle: int, subject: int, margins: Sequence[float]) -> str:
    """Describe both tokens, and their margins below the largest logit of the oracle's run.

    This run takes the whole text in one batch. The oracle's greedy run takes it token by token, so
    it need not have chosen the largest logit of this run.
    """
    best = "the oracle's largest logit"
    if oracle == subject:
        below = f"{margins[0]:.2g} below {best} in a run of all tokens at once"
        return f"{oracle} in both engines; its logit is {below}"
    return (
        f"{subject}, and the oracle's is {oracle}; their logits are {margins[1]:.2g} and "
        f"{margins[0]:.2g} below {best}"
    )
