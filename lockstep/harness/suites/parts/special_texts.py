"""Texts with the tokens that no merge makes: control, user-defined, byte, unused and unknown ones.

An engine that splits `<think>`, or reads the text `<0x41>` as a byte, is right on all other texts.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import TypeVar

from lockstep.engine.tokenizers.base import Tokenizer
from lockstep.engine.tokenizers.vocabulary import Attr
from lockstep.harness.suites.parts.own_texts import encodes, spread

KINDS = {
    "user-defined": Attr.USER_DEFINED,
    "control": Attr.CONTROL,
    "unknown": Attr.UNKNOWN,
    "byte": Attr.BYTE,
    "unused": Attr.UNUSED,
}
# alone, several times, inside of a word, between words, beside other white space, digits, letters
# of several bytes and the byte 0, and behind as many bytes as a buffer may have
PLACES = (
    *("{}", "{0}{0}", "{0}" * 9, "it{}is", "it {} is", " {} ", "it  {}  is", "it\n{}\nis"),
    *("It.{}Is", "1{}1", "\t{}\t", "\r{}", "é{}é", "\0{}", "a" * 300 + "{}"),
)
MAX_TOGETHER = 1024  # tokens of a kind that stand in long texts: some files reserve 6000
TOKENS_PER_TEXT = 64
CHARACTERS_PER_TEXT = 16
TOKENS_PER_PLACE = 3  # drawn from all, beside the first two and the last two
T = TypeVar("T")


def special_texts(tokenizer: Tokenizer, seed: int) -> list[bytes]:
    """Return UTF-8 texts without repeats: tokens of each kind in each place, and side by side."""
    kinds = {name: tokens_of_kind(tokenizer, kind) for name, kind in KINDS.items()}
    tokens = {name: texts_of(tokenizer, own) for name, own in kinds.items()}
    found = [text for name, own in tokens.items() for text in placed(own, seed, name)]
    found += [text for own in tokens.values() for text in together(own)]
    some = [text for own in tokens.values() for text in ends_of(own)]
    found += [a + b for a, b in itertools.permutations(dict.fromkeys(some), 2)]
    every = dict.fromkeys((*(text.encode() for text in found), *every_byte()))
    return [text for text in every if encodes(tokenizer, text)]


def placed(tokens: list[str], seed: int, name: str) -> Iterator[str]:
    """Yield some tokens in each place, with their first character twice and in other case."""
    for number, place in enumerate(PLACES):
        chosen = spread(tokens, seed, f"{name} in place {number}")[:TOKENS_PER_PLACE]
        for token in dict.fromkeys((*ends_of(tokens), *chosen)):
            yield place.format(token)
    for token in dict.fromkeys((*ends_of(tokens), *tokens[:TOKENS_PER_PLACE])):
        yield from (token[:1] + token, token.upper(), token.lower())


def every_byte() -> Iterator[bytes]:
    """Yield texts that hold each byte of UTF-8 between letters, and one that ends with a tab."""
    ends = (0x80 + code for code in range(64))  # all bytes that end a character
    begins = (*range(0xC0, 0x800, 64), *range(0x800, 0xD800, 4096), 0xE000, 0xF000)
    longest = (0x10000, *range(0x40000, 0x110000, 0x40000))
    characters = [chr(code) for code in (*range(1, 128), *ends, *begins, *longest)]
    for start in range(0, len(characters), CHARACTERS_PER_TEXT):
        yield "a".join(characters[start : start + CHARACTERS_PER_TEXT]).encode()
    yield b"<\t"


def special_rows(tokenizer: Tokenizer) -> list[list[int]]:
    """Return lists of ids: none, and tokens of every two kinds side by side."""
    kinds = (*KINDS.values(), Attr.NORMAL)
    some = [token for kind in kinds for token in ends_of(tokens_of_kind(tokenizer, kind))]
    pairs = itertools.permutations(dict.fromkeys(some), 2)
    return [[], *([first, second, first] for first, second in pairs)]


def ends_of(tokens: Sequence[T]) -> list[T]:
    """Return the first two and the last two of them."""
    return [*tokens[:2], *tokens[2:][-2:]]


def special_tokens(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of all kinds, of each no more than stand in texts."""
    return [
        token for kind in KINDS.values() for token in tokens_of_kind(tokenizer, kind)[:MAX_TOGETHER]
    ]


def tokens_of_kind(tokenizer: Tokenizer, kind: int) -> list[int]:
    return [token for token, attr in enumerate(tokenizer.vocabulary.attrs) if attr & kind]


def texts_of(tokenizer: Tokenizer, tokens: list[int]) -> list[str]:
    """Return the texts of tokens, as the file has them, where they are UTF-8."""
    found = []
    for token in tokens:
        try:
            found.append(tokenizer.vocabulary.texts[token].decode())
        except UnicodeDecodeError:
            continue
    return found


def together(tokens: list[str]) -> Iterator[str]:
    """Yield texts in which each token stands once, behind a letter."""
    for start in range(0, min(len(tokens), MAX_TOGETHER), TOKENS_PER_TEXT):
        yield "".join(f"a{token}" for token in tokens[start : start + TOKENS_PER_TEXT])
