"""Differences between two answers to a question about a tokenizer, as facts."""

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
    LEADING_SPACE = "a leading space is missing"
    SPACES = "only spaces differ"
    CUT = "the end of the text is missing"
    TEXT = "another text"


Found = tuple[TokenDifference, str]  # and the attribute of the first expected token that differs
ATTRS = {Attr.NORMAL: "NORMAL", Attr.CONTROL: "CONTROL", Attr.USER_DEFINED: "USER_DEFINED"}


def count_kinds(context: Context, rows: Iterable[tuple[Any, Any, Any]]) -> list[dict[str, Any]]:
    """Return the kinds of differences in these rows (input, expected, actual), and how often each
    occurs; an empty list if our tokenizer cannot read the vocabulary."""
    try:
        tokenizer = context.tokenizer
    except EngineError:
        return []
    found = Counter(each for _, *pair in rows for each in kinds_of(tokenizer, *pair))
    return [
        {"kind": kind.name, "token_kind": token, "n": n}
        for (kind, token), n in sorted(found.items(), key=lambda item: -item[1])
    ]


def kinds_of(tokenizer: Tokenizer, expected: Any, actual: Any) -> Iterator[Found]:
    if isinstance(expected, bytes):
        yield kind_of_text(expected, actual), ""
    else:
        yield from kinds_of_ids(tokenizer, [*map(int, expected)], [*map(int, actual)])


def kinds_of_ids(
    tokenizer: Tokenizer, expected: Sequence[int], actual: Sequence[int]
) -> Iterator[Found]:
    """Yield a missing BOS as a separate kind, and then the kind of any other difference."""
    bos = tokenizer.vocabulary.bos
    rest = expected[1:]
    if expected[:1] == [bos] and (actual[:1] != [bos] or actual == rest):
        yield TokenDifference.BOS, ATTRS[Attr.CONTROL]
        expected = rest
    if expected != actual:
        yield kind_of_ids(tokenizer, expected, actual), attribute(tokenizer, expected, actual)


def kind_of_ids(
    tokenizer: Tokenizer, expected: Sequence[int], actual: Sequence[int]
) -> TokenDifference:
    try:
        texts = [b"".join(tokenizer.pieces_of(ids, special=True)) for ids in (expected, actual)]
    except EngineError:  # there is no such token
        return TokenDifference.TEXT
    return TokenDifference.TOKENS if texts[0] == texts[1] else kind_of_text(*texts)


def kind_of_text(expected: bytes, actual: bytes) -> TokenDifference:
    if expected == b" " + actual:
        return TokenDifference.LEADING_SPACE
    if expected.replace(b" ", b"") == actual.replace(b" ", b""):
        return TokenDifference.SPACES
    return TokenDifference.CUT if expected.startswith(actual) else TokenDifference.TEXT


def attribute(tokenizer: Tokenizer, expected: Sequence[int], actual: Sequence[int]) -> str:
    """Return the attribute of the first expected token that differs; "" if there is none."""
    pairs = zip(expected, [*actual, None], strict=False)
    first = next((want for want, got in pairs if want != got), None)
    attrs = 0 if first is None else tokenizer.vocabulary.attrs[first]
    return next((name for attr, name in ATTRS.items() if attrs & attr), "")
