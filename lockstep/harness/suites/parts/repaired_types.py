"""Tokens that llama.cpp takes for control tokens by their text, whatever the file says of them.

An engine that goes by the file alone reads them out of text, or writes them, otherwise.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from lockstep.engine.errors import EngineError
from lockstep.engine.tokenizers.vocabulary import Attr, Vocabulary
from lockstep.harness.context.suite import Context

SHOWN = 3


def repaired_tokens(vocabulary: Vocabulary) -> list[int]:
    pairs = enumerate(zip(vocabulary.stored_attrs, vocabulary.attrs, strict=True))
    return [
        i for i, (stored, now) in pairs if bool(stored & Attr.HIDDEN) != bool(now & Attr.HIDDEN)
    ]


def named_among(context: Context, wrong: Iterable[tuple[Any, Sequence[Any], Sequence[Any]]]) -> str:
    """A clause for a verdict where each difference has such a token on one of its sides; else "".
    wrong: what was asked, expected and said: two of them are ids."""
    try:
        vocabulary = context.tokenizer.vocabulary
    except EngineError:
        return ""
    known = {*repaired_tokens(vocabulary)}
    sides = [{i for side in row if not isinstance(side, bytes) for i in side} for row in wrong]
    found = sorted(known.intersection(*[set().union(*sides)] if sides else [set()]))
    if not found or not all(known & side for side in sides):
        return ""
    texts = ", ".join(
        f"{i} {vocabulary.texts[i].decode(errors='replace')!r}" for i in found[:SHOWN]
    )
    texts += f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    one = "a control token" if vocabulary.attrs[found[0]] & Attr.HIDDEN else "one that is shown"
    return f"; llama.cpp takes {texts} for {one} by its text, against the file (see its log)"
