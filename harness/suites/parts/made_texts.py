"""Texts made of a vocabulary's own tokens, in addition to fixed texts.

Some texts have tokens that no merge makes (control, user-defined, byte, unused and unknown tokens)
in many places. An engine that splits `<think>`, or reads the text `<0x41>` as a byte, is right on
all other texts. Other texts have pieces with competing merges. The order of two equal merges shows
only in a piece that overlaps itself (`lll` of `ll`). A pre-tokenizer's cut shows only if the merged
text across it is a token. The functions search the vocabulary for both kinds of pieces, and also
join random pieces.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeVar

from lockstep.engine.errors import EngineError
from lockstep.engine.tokenizers.base import Tokenizer
from lockstep.engine.tokenizers.vocabulary import Attr
from lockstep.harness.synth.draws import integers, stream

KINDS = {
    "user-defined": Attr.USER_DEFINED,
    "control": Attr.CONTROL,
    "unknown": Attr.UNKNOWN,
    "byte": Attr.BYTE,
    "unused": Attr.UNUSED,
}
# alone, repeated, within a word, between words, next to other white space, digits, multi-byte
# letters and the byte 0, and after as many bytes as a buffer may hold
PLACES = (
    *("{}", "{0}{0}", "{0}" * 9, "it{}is", "it {} is", " {} ", "it  {}  is", "it\n{}\nis"),
    *("It.{}Is", "1{}1", "\t{}\t", "\r{}", "é{}é", "\0{}", "a" * 300 + "{}"),
)
MAX_TOGETHER = 1024  # tokens of one kind in long texts; some files reserve 6000
TOKENS_PER_TEXT = 64
CHARACTERS_PER_TEXT = 16
TOKENS_PER_PLACE = 3  # drawn at random, in addition to the first two and the last two
T = TypeVar("T")
LONGEST = 16  # bytes of a piece; the result of the last merge is rarely longer
# texts of one kind: any tokenizer needs milliseconds, and the question fits on a few pages
OF_A_KIND = 48
PIECES = 10  # number of pieces of a random text
CONTRACTIONS = ("s", "t", "re", "ve", "m", "ll", "d")


def special_texts(tokenizer: Tokenizer, seed: int) -> list[bytes]:
    """Return distinct UTF-8 texts with tokens of each kind: in each place, and next to each
    other."""
    kinds = {name: tokens_of_kind(tokenizer, kind) for name, kind in KINDS.items()}
    tokens = {name: texts_of(tokenizer, own) for name, own in kinds.items()}
    found = [text for name, own in tokens.items() for text in place_tokens(own, seed, name)]
    found += [text for own in tokens.values() for text in together(own)]
    some = [text for own in tokens.values() for text in ends_of(own)]
    found += [a + b for a, b in itertools.permutations(dict.fromkeys(some), 2)]
    every = dict.fromkeys((*(text.encode() for text in found), *every_byte()))
    return [text for text in every if encodes(tokenizer, text)]


def place_tokens(tokens: list[str], seed: int, name: str) -> Iterator[str]:
    """Yield texts with some tokens in each place. Also yield tokens with their first character
    doubled, and in upper and lower case."""
    for number, place in enumerate(PLACES):
        chosen = spread(tokens, seed, f"{name} in place {number}")[:TOKENS_PER_PLACE]
        for token in dict.fromkeys((*ends_of(tokens), *chosen)):
            yield place.format(token)
    for token in dict.fromkeys((*ends_of(tokens), *tokens[:TOKENS_PER_PLACE])):
        yield from (token[:1] + token, token.upper(), token.lower())


def every_byte() -> Iterator[bytes]:
    """Yield texts that contain each byte of UTF-8 between letters, and one text that ends with a
    tab."""
    ends = (0x80 + code for code in range(64))  # all bytes that end a multi-byte character
    begins = (*range(0xC0, 0x800, 64), *range(0x800, 0xD800, 4096), 0xE000, 0xF000)
    longest = (0x10000, *range(0x40000, 0x110000, 0x40000))
    characters = [chr(code) for code in (*range(1, 128), *ends, *begins, *longest)]
    for start in range(0, len(characters), CHARACTERS_PER_TEXT):
        yield "a".join(characters[start : start + CHARACTERS_PER_TEXT]).encode()
    yield b"<\t"


def special_rows(tokenizer: Tokenizer) -> list[list[int]]:
    """Return lists of ids: an empty list, and lists in which tokens of every two kinds are
    neighbours."""
    kinds = (*KINDS.values(), Attr.NORMAL)
    some = [token for kind in kinds for token in ends_of(tokens_of_kind(tokenizer, kind))]
    pairs = itertools.permutations(dict.fromkeys(some), 2)
    return [[], *([first, second, first] for first, second in pairs)]


def ends_of(tokens: Sequence[T]) -> list[T]:
    """Return the first two and the last two of the tokens."""
    return [*tokens[:2], *tokens[2:][-2:]]


def special_tokens(tokenizer: Tokenizer) -> list[int]:
    """Return tokens of all kinds, with at most as many tokens of each kind as `together` uses."""
    return [
        token for kind in KINDS.values() for token in tokens_of_kind(tokenizer, kind)[:MAX_TOGETHER]
    ]


def tokens_of_kind(tokenizer: Tokenizer, kind: int) -> list[int]:
    return [token for token, attr in enumerate(tokenizer.vocabulary.attrs) if attr & kind]


def texts_of(tokenizer: Tokenizer, tokens: list[int]) -> list[str]:
    """Return the texts of those tokens whose texts are UTF-8, as in the file."""
    found = []
    for token in tokens:
        try:
            found.append(tokenizer.vocabulary.texts[token].decode())
        except UnicodeDecodeError:
            continue
    return found


def together(tokens: list[str]) -> Iterator[str]:
    """Yield texts of several tokens. Each token occurs once, after a letter."""
    for start in range(0, min(len(tokens), MAX_TOGETHER), TOKENS_PER_TEXT):
        yield "".join(f"a{token}" for token in tokens[start : start + TOKENS_PER_TEXT])


def own_texts(tokenizer: Tokenizer, seed: int) -> list[bytes]:
    """Return distinct UTF-8 texts made of ordinary pieces."""
    pieces = ordinary(tokenizer)
    if not pieces:
        return []
    kinds = [
        spread([*overlapping(pieces)], seed, "overlapping"),
        spread([*contracted_pieces(pieces)], seed, "contracted"),
        glue_pieces(pieces, seed),
    ]
    texts = dict.fromkeys(text.encode() for texts in kinds for text in texts)
    return [text for text in texts if encodes(tokenizer, text)]


def encodes(tokenizer: Tokenizer, text: bytes) -> bool:
    """Return True if our tokenizer encodes the text. With some vocabularies, certain texts end
    llama.cpp's process. Our tokenizer refuses these texts."""
    try:
        for parse_special in (False, True):
            tokenizer.encode(text, parse_special=parse_special)
    except EngineError:
        return False
    return True


def ordinary(tokenizer: Tokenizer) -> list[str]:
    """Return the texts of tokens that are neither control tokens nor single bytes, and that have
    only whole characters."""
    found = []
    for piece, attr in zip(tokenizer.pieces, tokenizer.vocabulary.attrs, strict=True):
        if piece and len(piece) <= LONGEST and not attr & (Attr.SPECIAL | Attr.BYTE):
            try:
                found.append(piece.decode())
            except UnicodeDecodeError:
                continue
    return found


def overlapping(pieces: Sequence[str]) -> Iterator[str]:
    """Yield texts of one and a half copies of a piece that has two equal halves, so that two merges
    compete."""
    known = set(pieces)
    for piece in pieces:
        half = piece[: len(piece) // 2]
        if half and half * 2 == piece and half in known:
            yield f"a{half * 3}"


def contracted_pieces(pieces: Sequence[str]) -> Iterator[str]:
    """Yield texts in which the end of a contraction and the letters after it are one piece, in both
    cases. An engine that splits after the contraction cannot merge this piece."""
    by_first: dict[str, list[str]] = defaultdict(list)
    for piece in pieces:
        if len(piece) > 1 and piece.isalpha():
            by_first[piece[0].lower()].append(piece)
    for ending in CONTRACTIONS:
        for piece in by_first[ending[-1]]:
            for before in dict.fromkeys((ending[:-1], ending[:-1].upper())):
                yield f"it'{before}{piece}"


def glue_pieces(pieces: Sequence[str], seed: int) -> Iterator[str]:
    """Yield texts of random pieces, joined."""
    at = integers(stream(seed, "glued texts"), OF_A_KIND * PIECES, len(pieces))
    for row in at.reshape(OF_A_KIND, PIECES):
        yield "".join(pieces[i] for i in row)


def spread(texts: Sequence[str], seed: int, name: str) -> list[str]:
    """Return all texts, or OF_A_KIND of them, spread over the whole list."""
    if len(texts) <= OF_A_KIND:
        return list(texts)
    drawn = integers(stream(seed, f"{name} texts"), OF_A_KIND, len(texts))
    return [texts[i] for i in sorted({*drawn.tolist()})]
