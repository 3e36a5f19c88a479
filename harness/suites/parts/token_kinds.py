"""Differences between two answers to a question about a tokenizer, as facts."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

from lockstep.engine.errors import EngineError
from lockstep.engine.tokenizers.base import Tokenizer
from lockstep.engine.tokenizers.vocabulary import Attr
from lockstep.harness.context.suite import Context


class TokenDifference(Enum):
    """The kind of difference between the engine's ids or bytes and the expected ids or bytes."""

    BOS = "BOS is missing"
    TOKENS = "the same text in other tokens"
    LEADING_SPACE = "a space is missing in front of the text, or after a special token"
    EXTRA_SPACE = "there is one space more in front of the text, or after a special token"
    BYTE_NAME = "the name of a byte token in the text, such as <0x0A>, is read as the byte"
    CUT = "the end of the text is missing"
    SPACES = "only spaces differ"
    TEXT = "another text"


Found = tuple[TokenDifference, str]  # the second is the name of an attribute, see `kinds_of`
SPECIAL = Attr.SPECIAL | Attr.BYTE
BYTE_NAME = re.compile(rb"<0x([0-9A-F]{2})>")
ATTRS = {
    getattr(Attr, name): name
    for name in ("CONTROL", "UNKNOWN", "USER_DEFINED", "BYTE", "UNUSED", "NORMAL")
}


def count_kinds(context: Context, rows: Iterable[tuple[Any, Any, Any]]) -> list[dict[str, Any]]:
    """Return the kinds of differences in these rows (input, expected, actual), and how often each
    occurs; an empty list if our tokenizer cannot read the vocabulary."""
    try:
        tokenizer = context.tokenizer
    except EngineError:
        return []
    found = Counter(each for row in rows for each in kinds_of(tokenizer, *row))
    return [
        {"kind": kind.name, "token_kind": token, "n": n}
        for (kind, token), n in sorted(found.items(), key=lambda item: -item[1])
    ]


def kinds_of(tokenizer: Tokenizer, given: Any, expected: Any, actual: Any) -> Iterator[Found]:
    """Yield the kinds of differences between two answers. The attribute is that of the first
    expected id that differs; for the bytes of given ids, that of the first id that is special."""
    if isinstance(expected, bytes):
        special = (token for token in given if tokenizer.vocabulary.attrs[token] & SPECIAL)
        yield kind_of_text(expected, actual), attribute_of(tokenizer, next(special, None))
    else:
        yield from kinds_of_ids(tokenizer, [*map(int, expected)], [*map(int, actual)])


def kinds_of_ids(
    tokenizer: Tokenizer, expected: Sequence[int], actual: Sequence[int]
) -> Iterator[Found]:
    """Yield a missing BOS as a separate kind, and then the kind of any other difference."""
    bos = tokenizer.vocabulary.bos
    leading = [
        sum(1 for _ in itertools.takewhile(lambda each: each == bos, ids))
        for ids in (expected, actual)
    ]
    if leading[0] == leading[1] + 1:
        yield TokenDifference.BOS, ATTRS[Attr.CONTROL]
        expected = expected[1:]
    if expected != actual:
        pairs = zip(expected, [*actual, None], strict=False)
        first = next((want for want, got in pairs if want != got), None)
        attribute = attribute_of(tokenizer, first)
        yield from ((kind, attribute) for kind in kinds_of_texts(tokenizer, expected, actual))


def kinds_of_texts(
    tokenizer: Tokenizer, expected: Sequence[int], actual: Sequence[int]
) -> Iterator[TokenDifference]:
    """Yield BYTE_NAME as a separate kind if it explains the rest of the text."""
    try:
        wanted, got = ([*split_at_special(tokenizer, ids)] for ids in (expected, actual))
    except EngineError:  # an id is outside the vocabulary
        yield TokenDifference.TEXT
        return
    named = [BYTE_NAME.sub(lambda found: bytes([int(found[1], 16)]), part) for part in wanted]
    if kind := kind_of_parts(wanted, got):
        yield kind
    elif kind := kind_of_parts(named, got):
        yield TokenDifference.BYTE_NAME
        if kind is not TokenDifference.TOKENS:
            yield kind
    else:
        texts = b"".join(wanted), b"".join(got)
        yield TokenDifference.TOKENS if texts[0] == texts[1] else kind_of_text(*texts)


def kind_of_parts(expected: Sequence[bytes], actual: Sequence[bytes]) -> TokenDifference | None:
    """Return the kind of difference between parts that differ at most by a space in front of
    each; None for other parts."""
    if len(expected) != len(actual):
        return None
    pairs = [*zip(expected, actual, strict=True)]
    if all(a == b for a, b in pairs):
        return TokenDifference.TOKENS
    if all(a in (b, b" " + b) for a, b in pairs):
        return TokenDifference.LEADING_SPACE
    return TokenDifference.EXTRA_SPACE if all(b in (a, b" " + a) for a, b in pairs) else None


def split_at_special(tokenizer: Tokenizer, ids: Sequence[int]) -> Iterator[bytes]:
    """Yield in turn the text of ordinary tokens, which may be empty, and a special token."""
    text, pieces = b"", tokenizer.pieces_of(ids, special=True)
    for token, piece in zip(ids, pieces, strict=True):
        if tokenizer.vocabulary.attrs[token] & Attr.SPECIAL:
            yield from (text, piece)
            text = b""
        else:
            text += piece
    yield text


def kind_of_text(expected: bytes, actual: bytes) -> TokenDifference:
    if expected == b" " + actual:
        return TokenDifference.LEADING_SPACE
    if expected.startswith(actual):
        return TokenDifference.CUT
    same = expected.replace(b" ", b"") == actual.replace(b" ", b"")
    return TokenDifference.SPACES if same else TokenDifference.TEXT


def attribute_of(tokenizer: Tokenizer, token: int | None) -> str:
    attrs = 0 if token is None else tokenizer.vocabulary.attrs[token]
    return next((name for attr, name in ATTRS.items() if attrs & attr), "")
