"""Judgement of a text: could greedy tokens of the oracle's model have produced it?

A text does not show where its tokens end, and the same bytes may be several tokens. So a text is
wrong only if no token that fits it is within the noise of the oracle's largest logit.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.harness.context.suite import Context
from lockstep.harness.judging.tolerances import between_two
from lockstep.harness.records import Status, Verdict
from lockstep.harness.suites.decode import EXACT_TIE
from lockstep.harness.suites.parts.oracles_logits import why_any_choice_agrees
from lockstep.harness.suites.parts.text_readings import (
    REPLACED,
    Pieces,
    Reading,
    ends_a_character,
    is_text,
    readings,
)

ENDED = "ended"  # key in `detail` of a verdict on a text that ends early


def judge_text(
    context: Context,
    batches: Sequence[Batch],
    logits: F32,
    free: Sequence[int],
    said: bytes,
    pieces: Pieces,
    *,
    whole: bool = False,
) -> Iterator[Verdict]:
    """Judge a text, and yield the verdicts. logits: the oracle's logits before each of its tokens;
    free: the oracle's tokens that have a text; said: the subject's text; whole: True if the text
    may end only where an honest run's text may end."""
    if why := why_any_choice_agrees(context, logits):
        yield context.verdict("text", "not-compared", why)
        return
    best = max(readings(said, free, pieces), key=lambda r: (r.end, -len(r.rest)))
    if best.end == len(free):
        more = "" if len(free) == len(logits) else "; the oracle's text ends there"
        yield context.verdict("text", "agreed", f"{same(best)}{more}")
        if best.rest.strip() and not (more or ends_a_character(best.rest, free, pieces)):
            text = f"the engine's text continues after the requested {len(free)} tokens"
            status: Status = "diverged" if whole else "not-compared"
            yield context.verdict("text", status, f"{text}: {best.rest[:40]!r}")
        return
    reason = why_not_compared(best, free, pieces, whole=whole)
    # The number of bytes that a U+FFFD stands for is unknown, so one more may come from a tie.
    if reason and not (REPLACED in said and lacks_characters(best, free, pieces)):
        yield from verdict_for_early_end(context, reason, free, best, pieces)
        return
    noise = context.noise.relative
    tie = first_tie(noise, logits, free, best, pieces)
    if tie is None:  # otherwise more runs would cost time, because each prompt needs its own
        tie = first_tie(noise := context.noise_on(batches), logits, free, best, pieces)
    if not np.isfinite(noise):
        text = "honest runs of this model overflow, so there is no limit for ties"
        yield context.verdict("text", "not-compared", text)
        return
    if tie is None and reason:
        yield from verdict_for_early_end(context, reason, free, best, pieces)
        return
    if tie is None:
        yield divergence(context, logits, free, best, pieces)
        return
    step, detail = tie
    kind = "a tie within the noise" if detail["margin"] else EXACT_TIE
    if step:
        yield context.verdict("text", "agreed", same(Reading(end=step, rest=b"", note=best.note)))
    text = (
        f"token {step} may be {detail['actual']}, and the oracle's is "
        f"{detail['expected']}: {kind} ({detail['margin']:.2g} apart, allowed "
        f"{detail['allowed']:.2g}); later tokens were not compared"
    )
    yield context.verdict("text", "excused", text, detail)


def verdict_for_early_end(
    context: Context, reason: str, free: Sequence[int], best: Reading, pieces: Pieces
) -> Iterator[Verdict]:
    if best.end:
        yield context.verdict("text", "agreed", same(best))
    unclear = best.end < len(free) - 1 and is_replaced(best.rest, pieces[free[best.end]])
    if unclear or lacks_characters(best, free, pieces):
        yield context.verdict("text", "not-compared", reason, {} if unclear else {ENDED: best.end})
    elif not best.end:
        text = "the engine writes nothing, and the oracle writes no whole character"
        yield context.verdict("text", "not-applicable", text)


def same(found: Reading) -> str:
    note = f", {found.note}" if found.note else ""
    return f"the text of {found.end} greedy tokens is the same{note}"


def why_not_compared(
    best: Reading, free: Sequence[int], pieces: Pieces, *, whole: bool = False
) -> str:
    """Describe where the subject's text ends, or where incomplete UTF-8 hides it. Return "" if the
    text continues differently."""
    of = f"of the {len(free)} tokens of the oracle's text"
    piece = pieces[free[best.end]]
    if piece.startswith(best.rest) and not whole:
        return f"the engine's text ends after {best.end} {of}: the rest was not compared"
    if is_replaced(best.rest, piece):
        return f"after {best.end} {of} the engine shows incomplete UTF-8 as U+FFFD"
    return ""


def lacks_characters(best: Reading, free: Sequence[int], pieces: Pieces) -> bool:
    """Return True if the text lacks more than a streaming engine holds back, which is the beginning
    of a character or trailing spaces."""
    if is_replaced(best.rest, pieces[free[best.end]]):
        return False
    left = b"".join(pieces[token] for token in free[best.end :])
    return bool(left[len(best.rest) :].decode("utf-8", "ignore").strip())


def is_replaced(rest: bytes, piece: bytes) -> bool:
    pairs = enumerate(zip(rest, piece, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(rest), len(piece)))
    while at and at < len(rest) and rest[at] & 0xC0 == 0x80:  # within a character
        at -= 1
    return rest[at:].startswith(REPLACED)


def first_tie(
    noise: float, logits: F32, free: Sequence[int], best: Reading, pieces: Pieces
) -> tuple[int, dict[str, Any]] | None:
    """Return the first token where an honest engine may choose differently and still write this
    text; None if there is none."""
    rest = b"".join(pieces[token] for token in free[: best.end]) + best.rest
    for step in range(best.end + 1):
        row, chosen = logits[step], free[step]
        allowed = between_two(noise, row)
        margins = row.max() - row
        for token in np.argsort(margins, kind="stable"):
            if margins[token] > allowed:
                break
            piece = pieces[int(token)]
            dropped = best.drops and not is_text(piece)
            if token != chosen and (dropped or fits(piece, rest, pieces)):
                detail = {"step": step, "expected": chosen, "actual": int(token)}
                return step, detail | {"margin": float(margins[token]), "allowed": allowed}
        rest = rest[len(pieces[chosen]) :]
    return None


def fits(piece: bytes, rest: bytes, pieces: Pieces) -> bool:
    """Return True if the text may begin with the token, or end within it."""
    if REPLACED in rest and REPLACED in piece.decode("utf-8", "replace").encode():
        return True  # the bytes cannot be told apart
    if pieces.cleans:  # the engine may have removed a space before the piece
        piece, rest = piece.lstrip(b" "), rest.lstrip(b" ")
    return rest.startswith(piece) or piece.startswith(rest)


def divergence(
    context: Context, logits: F32, free: Sequence[int], best: Reading, pieces: Pieces
) -> Verdict:
    """Return the verdict on a wrong text, with the likeliest token that fits it."""
    row, chosen = logits[best.end], free[best.end]
    order = np.argsort(-row, kind="stable").tolist()
    fitting = (t for t in order if pieces[t] and fits(pieces[t], best.rest, pieces))
    actual = next(fitting, None)
    margin = None if actual is None else float(row.max() - row[actual])
    detail = {"step": best.end, "expected": chosen, "actual": actual, "margin": margin}
    detail |= {"at_fault": "subject", "expected_text": repr(pieces[chosen])}
    detail |= {"actual_text": repr(best.rest[:40])}
    below = (
        "no token fits the text"
        if margin is None
        else f"{context.oracle.name} scores the likeliest token that fits, {actual}, "
        + f"{margin:.2g} lower than its own {chosen}"
    )
    if actual == chosen:
        below = (
            "it may be the same token: does the engine decode bytes before a character is complete?"
        )
    text = (
        f"after {best.end} greedy tokens the text continues with {best.rest[:40]!r}, and "
        f"the oracle's with {pieces[chosen]!r}; {below}; at fault: the engine under test"
    )
    return context.verdict("text", "diverged", text, detail, key=("text", "token"))
