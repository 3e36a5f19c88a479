"""Where an engine's text ends before the oracle's does, or is no text any more."""

from collections.abc import Sequence

from lockstep.harness.suites.parts.text_readings import REPLACED, Pieces, Reading


def why_not_compared(
    best: Reading, free: Sequence[int], pieces: Pieces, *, whole: bool = False
) -> str:
    """Where the subject's text ends, or is no text any more; "": it goes on, and otherwise."""
    of = f"of the {len(free)} tokens of the oracle's text"
    piece = pieces[free[best.end]]
    if piece.startswith(best.rest) and not whole:
        return f"its text ends after {best.end} {of}: what is behind them was not compared"
    if is_replaced(best.rest, piece):
        return f"behind {best.end} {of} bytes that are no characters are shown as U+FFFD"
    return ""


def lacks_characters(best: Reading, free: Sequence[int], pieces: Pieces) -> bool:
    """Whether more of the tokens is not there than what who streams a text keeps back: the
    beginning of a character; or spaces, which some take from its end."""
    if is_replaced(best.rest, pieces[free[best.end]]):
        return False
    left = b"".join(pieces[token] for token in free[best.end :])
    return bool(left[len(best.rest) :].decode("utf-8", "ignore").strip())


def is_replaced(rest: bytes, piece: bytes) -> bool:
    pairs = enumerate(zip(rest, piece, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(rest), len(piece)))
    while at and at < len(rest) and rest[at] & 0xC0 == 0x80:  # inside of a character
        at -= 1
    return rest[at:].startswith(REPLACED)
