"""Finds the tokens that start at a place of a text, as a trie would, with less memory."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

HEAD = 5  # number of bytes: the stand-in for a space, and two letters


class Matcher:
    """Index of tokens: knows the lengths of the tokens that start with the same few bytes.

    A look-up costs one slice for each of these lengths: a constant, however long the text is.
    """

    def __init__(self, tokens: Mapping[bytes, int]) -> None:
        self.tokens = tokens
        sizes: defaultdict[bytes, set[int]] = defaultdict(set)
        for text in tokens:
            sizes[text[:HEAD]].add(len(text))
        self.sizes = {head: tuple(sorted(found)) for head, found in sizes.items()}

    def matches(self, text: bytes, at: int) -> Iterator[tuple[int, int]]:
        """Yield length and id of each token that starts at `at`, the shortest first."""
        left = len(text) - at
        for size in range(1, min(HEAD, left + 1)):
            token = self.tokens.get(text[at : at + size])
            if token is not None:
                yield size, token
        for size in self.sizes.get(text[at : at + HEAD], ()):
            if HEAD <= size <= left:
                token = self.tokens.get(text[at : at + size])
                if token is not None:
                    yield size, token

    def longest(self, text: bytes, at: int) -> tuple[int, int] | None:
        """Return the length and id of the longest token here."""
        left = len(text) - at
        for size in reversed(self.sizes.get(text[at : at + HEAD], ())):
            if (
                HEAD <= size <= left
                and (token := self.tokens.get(text[at : at + size])) is not None
            ):
                return size, token
        for size in range(min(HEAD - 1, left), 0, -1):
            token = self.tokens.get(text[at : at + size])
            if token is not None:
                return size, token
        return None
