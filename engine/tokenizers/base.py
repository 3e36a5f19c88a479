"""The contract of every tokenizer, and code that most of them share.

Source: tokenizer_st_partition, token_to_piece and detokenize in src/llama-vocab.cpp of
llama-cpp-python 0.3.36. `render` is the rule of the SPM, WPM and UGM vocabularies there.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import ClassVar

from lockstep.engine.errors import EngineError, InvalidModel, Unsupported
from lockstep.engine.registry import Registered, import_members
from lockstep.engine.tokenizers.tables import Needles
from lockstep.engine.tokenizers.vocabulary import (
    Attr,
    Defaults,
    Metadata,
    read_string,
    read_vocabulary,
)

KEY = "tokenizer.ggml.model"
SPACE = "\u2581".encode()  # stands for a space in the stored texts of tokens
STRIPPED = b" \t\n\v\f\r"  # characters for which isspace is true in the C locale
OTHERS = ("hybriddna", "test", "whitespace")  # further kinds of llama.cpp


class Tokenizer(Registered):
    """Converts text to ids and back. Text is bytes, which need not be valid UTF-8."""

    defaults: ClassVar[Defaults]

    def __init__(self, metadata: Metadata) -> None:
        self.vocabulary = read_vocabulary(metadata, self.defaults)
        self.pieces = tuple(self.render(i) for i in range(self.vocabulary.n_vocab))

    def encode(
        self, text: bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Return the ids of `text`.

        `add_special` adds the model's BOS and EOS. With `parse_special`, the texts of control and
        unknown tokens stand for these tokens.
        """
        before, after = self.around() if add_special else ([], [])
        ids = list(before)
        for part in self.partition(text, parse_special=parse_special):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids.extend(self.segment(part))
        return [*ids, *after]

    def around(self) -> tuple[list[int], list[int]]:
        """Return the tokens that `add_special` puts before and after a text."""
        vocabulary = self.vocabulary
        before = [require_token(vocabulary.bos, "bos")] if vocabulary.add_bos else []
        after = [require_token(vocabulary.eos, "eos")] if vocabulary.add_eos else []
        return before, after

    def segment(self, text: bytes) -> Iterable[int]:
        """Return the ids of a text that is not empty and contains no special tokens."""
        raise NotImplementedError

    def piece(self, token: int, *, special: bool) -> bytes:
        """Return the bytes of a token; without `special`, control and unknown tokens have no
        bytes."""
        return self.pieces_of([token], special=special)[0]

    def pieces_of(self, ids: Sequence[int], *, special: bool) -> list[bytes]:
        """Return the pieces of many tokens."""
        pieces, hidden = self.pieces, frozenset() if special else self.hidden
        if ids and not 0 <= min(ids) <= max(ids) < len(pieces):
            wrong = next(token for token in ids if not 0 <= token < len(pieces))
            raise EngineError(f"there is no token {wrong}: there are {len(pieces)}")
        return [b"" if token in hidden else pieces[token] for token in ids]

    @cached_property
    def hidden(self) -> frozenset[int]:
        """Return control and unknown tokens."""
        return frozenset(i for i, a in enumerate(self.vocabulary.attrs) if a & Attr.HIDDEN)

    def decode(
        self, ids: Sequence[int], *, remove_special: bool = False, unparse_special: bool = False
    ) -> bytes:
        """Return the text of `ids`; it need not be valid UTF-8.

        `remove_special` drops the BOS and EOS that `encode` would have added, `unparse_special`
        writes the texts of control and unknown tokens.
        """
        vocabulary = self.vocabulary
        # llama.cpp drops the prefix only from the first token, even if that token has no text. So
        # [BOS, "▁a"] keeps its space. If BOS is removed, llama.cpp keeps the space on purpose.
        drop_space = vocabulary.add_space_prefix
        ids = list(ids)
        if remove_special and vocabulary.add_bos and ids and ids[0] == vocabulary.bos:
            drop_space = False
            ids = ids[1:]
        if remove_special and vocabulary.add_eos and ids and ids[-1] == vocabulary.eos:
            ids = ids[:-1]
        pieces = self.pieces_of(ids, special=unparse_special)
        if drop_space and pieces:
            pieces[0] = pieces[0].removeprefix(b" ")
        text = b"".join(pieces)
        return clean_spaces(text) if vocabulary.clean_spaces else text

    def render(self, token: int) -> bytes:
        """Return the bytes of a token, even of a hidden token."""
        text, attr = self.vocabulary.texts[token], self.vocabulary.attrs[token]
        if attr & Attr.SPECIAL:
            return text
        if attr & Attr.NORMAL:
            return text.replace(SPACE, b" ")
        if attr & Attr.BYTE:
            return bytes([byte_of(text, token)])
        return b""  # tokens that are UNUSED or UNDEFINED

    def partition(self, text: bytes, *, parse_special: bool) -> list[int | bytes]:
        """Return the special tokens in `text` and the pieces of text between them, in order."""
        parts: list[int | bytes] = [text] if text else []
        for at in self.special_texts.present(text):
            token = self.vocabulary.specials[at]
            if parse_special or not self.vocabulary.attrs[token] & Attr.HIDDEN:
                parts = [
                    piece
                    for part in parts
                    for piece in (self.split(part, token) if isinstance(part, bytes) else (part,))
                ]
        return parts

    @cached_property
    def special_texts(self) -> Needles:
        """Return the special tokens' texts, in search order."""
        return Needles([self.vocabulary.texts[token] for token in self.vocabulary.specials])

    def split(self, text: bytes, token: int) -> Iterator[int | bytes]:
        """Cut `text` at every occurrence of the token's text, leftmost first."""
        needle, attr = self.vocabulary.texts[token], self.vocabulary.attrs[token]
        at = 0
        while (found := text.find(needle, at)) >= 0:
            left = text[at:found]
            if attr & Attr.LSTRIP:
                left = left.rstrip(STRIPPED)
            if left:
                yield left
            yield token
            at = found + len(needle)
            while attr & Attr.RSTRIP and at < len(text) and text[at] in STRIPPED:
                at += 1
        if at < len(text):
            yield text[at:]


def clean_spaces(text: bytes) -> bytes:
    """Remove the spaces that word tokenizers put before punctuation and contractions.

    There are three passes, one after the other. So " ' ", for example, loses both spaces.
    """
    text = re.sub(rb" (?=[?!.,])", b"", text)
    text = text.replace(b" ' ", b"'")
    return re.sub(rb" (?='(?:[sm]|re|ve))", b"", text)


def require_token(token: int | None, role: str, asker: str = "") -> int:
    """Return `token`. Raises InvalidModel if it is None; the message says that `asker` (if empty,
    the flag for the role) needs the token.
    """
    if token is None:  # llama.cpp crashes, or gives the id -1
        asker = asker or f"tokenizer.ggml.add_{role}_token"
        raise InvalidModel(
            f"{asker} asks for a token that tokenizer.ggml.{role}_token_id does not give"
        )
    return token


def byte_of(text: bytes, token: int) -> int:
    """Return the byte of a byte token such as `<0x0A>`: characters 3 and 4, read as C's strtol
    does.

    llama.cpp ignores the other characters, so `<0xZZ>` is byte 0 and `<0x-1>` byte 255.
    """
    if len(text) < 3:
        raise InvalidModel(
            f"token {token} of tokenizer.ggml.tokens is a byte token: it must be like <0x0A>, "
            f"got {text!r}"
        )
    match = re.match(rb"[ \t\n\v\f\r]*([+-]?)([0-9a-fA-F]*)", text[3:5])
    sign, digits = match.groups() if match else (b"", b"")
    return int(sign + (digits or b"0"), 16) & 0xFF


def tokenizer_of(metadata: Metadata) -> Tokenizer:
    """Return the tokenizer that a model's metadata describes.

    Raises InvalidModel if a key is missing or wrong. Raises Unsupported if there is no vocabulary,
    or if only llama.cpp implements its kind.
    """
    if KEY not in metadata:
        raise InvalidModel(f"the key {KEY!r} is missing")
    kind = read_string(metadata, KEY).decode("utf-8", "replace")
    if kind in ("no_vocab", "none"):
        raise Unsupported(f"the model has no vocabulary: {KEY} is {kind!r}")
    import_members("lockstep.engine.tokenizers")
    if kind in Tokenizer.family or kind in OTHERS:
        return Tokenizer.member(kind)(metadata)
    known = ", ".join(sorted({*Tokenizer.family, *OTHERS, "no_vocab", "none"}))
    raise InvalidModel(f"{KEY} must be one of {known}, got {kind!r}")
