"""An engine's text compared with the oracle's tokens, in each honest way to display tokens."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from lockstep.engine.errors import EngineError
from lockstep.engine.tokenizers.base import Tokenizer, clean_spaces
from lockstep.harness.context.suite import Context, NoAnswer

FIRST = (0xC0, 0xE0, 0xF0)  # least lead byte that needs one, two and three more bytes
REPLACED = "\ufffd".encode()  # most engines show invalid UTF-8 so


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """The bytes of each token, from our own tokenizer."""

    tokenizer: Tokenizer

    @classmethod
    def of(cls, context: Context) -> "Pieces":
        try:
            return cls(tokenizer=context.tokenizer)
        except EngineError as error:
            text = f"our tokenizer cannot give the texts of tokens: {error}"
            raise NoAnswer("not-compared", text, {}) from error

    def __getitem__(self, token: int) -> bytes:
        """Return the bytes of a token; b"" for control tokens, which most engines do not show."""
        if token >= self.tokenizer.vocabulary.n_vocab:
            return b""  # a model may have more logits than tokens
        return self.tokenizer.piece(token, special=False)

    def count_shown(self, ids: Sequence[int]) -> int:
        """Count the tokens before the first token without a text. At such a token an engine may end
        its text, or show the token's name."""
        return next((i for i, token in enumerate(ids) if not self[token]), len(ids))

    @property
    def cleans(self) -> bool:
        return self.tokenizer.vocabulary.clean_spaces


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The match of the subject's text with the oracle's tokens, under one honest way to display
    them. end: the number of the oracle's tokens that match; rest: the subject's text after them;
    drops: True if the engine drops bytes that are not valid characters."""

    end: int
    rest: bytes
    note: str = ""
    drops: bool = False


def readings(said: bytes, free: Sequence[int], pieces: Pieces) -> Iterator[Reading]:
    """Yield the readings of a text. They are the unchanged text, the text with the oracle's leading
    spaces (some engines drop or add them), the text without the spaces that llama.cpp removes for
    some vocabularies, the text with incomplete UTF-8 replaced, and the text without invalid
    bytes."""
    yield reading(said, free, pieces, bytes)
    spaces = leading(b"".join(pieces[token] for token in free))
    # with a single token, the token with a space and the token without may both be wrong
    if said.strip() and (spaces.endswith(leading(said)) or len(free) > 1):
        note = f"except for the leading space{'' if spaces == b' ' else 's'}"
        yield replace(reading(spaces + said.lstrip(), free, pieces, bytes), note=note)
    if pieces.cleans:
        yield reading(clean_spaces(said), free, pieces, clean_spaces)
    if REPLACED in said:
        note = "except for incomplete UTF-8"
        yield replace(reading(in_characters(said), free, pieces, in_characters), note=note)
    elif said.strip() and is_text(said) and not is_text(b"".join(pieces[token] for token in free)):
        note = "except for incomplete UTF-8, which the engine drops"
        found = reading(said, free, pieces, whole_characters)
        of_none = found.end == len(free) and bool(found.rest.strip())
        if not of_none or ends_a_character(found.rest, free, pieces):
            yield replace(found, note=note, drops=True)


def ends_a_character(rest: bytes, free: Sequence[int], pieces: Pieces) -> bool:
    """Return True if the tokens end within a character, and `rest` is no longer than the tokens
    that some engines write to complete it, one token for each missing byte. llama-cpp-python counts
    the missing bytes from the last lead byte, whatever follows it."""
    text = b"".join(pieces[token] for token in free)
    if not whole_characters(text).strip():
        return False  # without a whole character before, there is no end of a text
    if all(byte < first for byte, first in zip(reversed(text), FIRST, strict=False)):
        return False
    longest = max(len(pieces[token]) for token in range(pieces.tokenizer.vocabulary.n_vocab))
    return len(rest) <= len(FIRST) * longest


def is_text(text: bytes) -> bool:
    return whole_characters(text) == text


def whole_characters(text: bytes) -> bytes:
    return text.decode("utf-8", "ignore").encode()


def leading(text: bytes) -> bytes:
    return text[: len(text) - len(text.lstrip())]


def without_prompt(said: bytes, prompt: bytes, text: bytes) -> bytes:
    """Return the engine's text without the prompt. Nothing is removed if the text itself begins
    like the prompt."""
    own, shown = said.lstrip(), prompt.strip()
    if not shown or not own.startswith(shown) or text.lstrip().startswith(shown):
        return said
    return own[len(shown) :]


def in_characters(text: bytes) -> bytes:
    """Replace each run of U+FFFD by a single one, because engines show different numbers of them
    for invalid bytes."""
    return re.sub("\ufffd+", "\ufffd", text.decode("utf-8", "replace")).encode()


def reading(
    said: bytes, free: Sequence[int], pieces: Pieces, write: Callable[[bytes], bytes]
) -> Reading:
    text, before, fits = b"", b"", 0
    for end, token in enumerate(free, 1):
        text += pieces[token]
        if said.startswith(written := write(text)):  # within a character, the texts may differ
            before, fits = written, end
    return Reading(end=fits, rest=said[len(before) :])
