"""Texts with the tokens that no merge makes: control, user-defined, byte, unused and unknown ones.

An engine that splits `<think>`, or reads the text `<0x41>` as a byte, is right on all other texts.
"""

from collections.abc import Iterator

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
# alone, doubled, inside of a word, between words, and beside other white space
PLACES = ("{}", "{0}{0}", "it{}is", "it {} is", " {} ", "it  {}  is", "it\n{}\nis", "It.{}Is")
MAX_TOGETHER = 1024  # tokens of a kind that stand in long texts: some files reserve 6000
TOKENS_PER_TEXT = 64


def special_texts(tokenizer: Tokenizer, seed: int) -> list[bytes]:
    """Return UTF-8 texts without repeats: tokens of each kind in each place, and side by side."""
    found: dict[bytes, None] = {}
    for name, kind in KINDS.items():
        tokens = texts_of(tokenizer, tokens_of_kind(tokenizer, kind))
        placed = [place.format(token) for token in tokens for place in PLACES]
        texts = [*spread(placed, seed, name), *together(tokens)]
        found |= dict.fromkeys(text.encode() for text in texts)
    return [text for text in found if encodes(tokenizer, text)]


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
