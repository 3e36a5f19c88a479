"""Texts that tokenizers are likely to get wrong, made from the vocabulary's pieces.

Every strategy draws only integers. So a counter-based generator can drive it in a campaign, and
Hypothesis can drive it in a test and then shrink its findings.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lockstep.engine.tokenizers.base import SPACE, Tokenizer
from lockstep.engine.tokenizers.vocabulary import Attr, Metadata
from lockstep.harness.fuzzers.draw import Draw
from lockstep.harness.fuzzers.tokens.traps import BLOCKS, BROKEN, PLAIN, RUNS, SPACES, TRAPS, WORDS
from lockstep.harness.synth.draws import stream

T = TypeVar("T")

MERGES = "tokenizer.ggml.merges"
MOST_TIES = 4096  # groups of tied tokens from which ties are made
BUFFER = 4096  # random numbers that are drawn at a time


class Counter:
    """Draws from a counter-based generator, which gives the same numbers on every machine."""

    def __init__(self, seed: int, name: str) -> None:
        self.bits = stream(seed, name)
        self.buffer: list[int] = []

    def below(self, n: int) -> int:
        if not self.buffer:
            self.buffer = (self.bits.random_raw(BUFFER) >> 32).tolist()
        return self.buffer.pop() * n >> 32


@dataclass(frozen=True, kw_only=True)
class Material:
    """The pieces, texts and merges from which texts are made."""

    pieces: tuple[bytes, ...]  # by id: the bytes of each token; some are empty
    shown: tuple[bytes, ...]  # bytes of ordinary tokens, without empty ones
    texts: tuple[bytes, ...]  # the file's texts, with U+2581 or byte-level characters
    specials: tuple[bytes, ...]  # texts of special tokens
    starting: Mapping[int, tuple[int, ...]]  # first byte -> indices in `shown`
    tied: tuple[tuple[int, ...], ...]  # groups of ids with equal scores
    merges: tuple[tuple[int, int], ...]  # ids of the left and right side


def material_of(tokenizer: Tokenizer, metadata: Metadata) -> Material:
    vocabulary = tokenizer.vocabulary
    ids = range(vocabulary.n_vocab)
    shown = tuple(
        tokenizer.pieces[i]
        for i in ids
        if tokenizer.pieces[i] and not vocabulary.attrs[i] & Attr.SPECIAL
    ) or (b"a",)
    starting: dict[int, list[int]] = defaultdict(list)
    for at, piece in enumerate(shown):
        starting[piece[0]].append(at)
    specials = tuple(vocabulary.texts[i] for i in vocabulary.specials) or (b"<s>",)
    return Material(
        pieces=tokenizer.pieces,
        shown=shown,
        texts=vocabulary.texts,
        specials=specials,
        starting={byte: tuple(places) for byte, places in starting.items()},
        tied=ties(vocabulary.scores),
        merges=merge_ids(metadata, vocabulary.ids),
    )


def ties(scores: Sequence[float]) -> tuple[tuple[int, ...], ...]:
    groups: dict[float, list[int]] = defaultdict(list)
    for token, score in enumerate(scores):
        groups[score].append(token)
    found = [tuple(group) for group in groups.values() if 1 < len(group) < len(scores)]
    return tuple(found[:MOST_TIES])


def merge_ids(metadata: Metadata, ids: Mapping[bytes, int]) -> tuple[tuple[int, int], ...]:
    if MERGES not in metadata:
        return ()
    found = []
    for merge in metadata[MERGES].data:
        left, _, right = merge.encode("utf-8", "surrogateescape").rpartition(b" ")
        if left in ids and right in ids:
            found.append((ids[left], ids[right]))
    return tuple(found)


# --- strategies ---------------------------------------------------------------------------------


def of(draw: Draw, items: Sequence[T]) -> T:
    return items[draw.below(len(items))]


def few(draw: Draw, most: int) -> int:
    """Draw a number from 1 to `most`. Small numbers are more likely."""
    return 1 + min(draw.below(most), draw.below(most))


def glue_tokens(draw: Draw, m: Material) -> bytes:
    return b"".join(of(draw, m.shown) for _ in range(few(draw, 10)))


def cut(draw: Draw, m: Material) -> bytes:
    """Return pieces whose beginning or end is removed. The cut may be inside a character."""
    parts = []
    for _ in range(few(draw, 4)):
        piece = of(draw, m.shown)
        at = draw.below(len(piece) + 1)
        parts.append(piece[:at] if draw.below(2) else piece[at:])
    return b"".join(parts)


def overlapping(draw: Draw, m: Material) -> bytes:
    """Return pieces that each share a byte with the next, so that two pieces compete for it."""
    text = of(draw, m.shown)
    for _ in range(few(draw, 5)):
        places = m.starting.get(text[-1])
        piece = m.shown[of(draw, places)] if places else of(draw, m.shown)
        text += piece[1:] if places and len(piece) > 1 else piece
    return text


def merge_neighbours(draw: Draw, m: Material) -> bytes:
    """Return the two sides of a merge, after bytes with which the left side may also merge."""
    if not m.merges:
        return overlapping(draw, m)
    left, right = of(draw, m.merges)
    _, other = of(draw, m.merges)
    sides = [m.pieces[i] for i in (left, right)]
    middle = m.pieces[other][-1:] if draw.below(2) else m.pieces[other]
    return b"".join([sides[draw.below(2)] * draw.below(3), middle, *sides, sides[draw.below(2)]])


def tied_scores(draw: Draw, m: Material) -> bytes:
    """Return neighbouring pieces with equal scores, which show the order of merges."""
    if not m.tied:
        return repeat_text(draw, m)
    group = of(draw, m.tied)
    a, b = m.pieces[of(draw, group)], m.pieces[of(draw, group)]
    return (a + b) * few(draw, 4) + (a if draw.below(2) else b[:1])


def repeat_text(draw: Draw, m: Material) -> bytes:
    return of(draw, m.shown) * few(draw, 40) + cut(draw, m)


LONG = 60


def one_character(draw: Draw, m: Material) -> bytes:
    """Return runs of one character, which merges of spaces, newlines, dashes and digits need."""
    run = of(draw, RUNS).encode() * few(draw, LONG)
    return of(draw, (b"", b"a", b" ", b"\n")) + run + of(draw, (b"", b"a", b" b", b"\n", b"1"))


def words(draw: Draw, m: Material) -> bytes:
    """Return prose and code, which pre-tokenizers split."""
    return "".join(of(draw, WORDS) for _ in range(few(draw, 8))).encode()


def characters(draw: Draw, m: Material) -> bytes:
    """Return characters that no piece has, from every plane and near the edges of blocks."""
    return "".join(character(draw) for _ in range(few(draw, 8))).encode()


def character(draw: Draw) -> str:
    low, high = of(draw, BLOCKS)
    code = low + draw.below(high - low + 1)
    return "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)


def traps(draw: Draw, m: Material) -> bytes:
    """Return a text with plain letters, and with characters that normalisation, lower-casing or
    accent stripping changes."""
    parts = [of(draw, TRAPS) if draw.below(3) else of(draw, PLAIN) for _ in range(few(draw, 8))]
    return "".join(parts).encode()


def special_like(draw: Draw, m: Material) -> bytes:
    """Return variants of special tokens' texts. They are whole, cut, with spaces, in upper case, or
    one inside another."""
    parts = []
    for _ in range(few(draw, 3)):
        text = of(draw, m.specials)
        at = draw.below(len(text) + 1)
        forms = (text, text, text[:at], text[at:], text.upper(), text[:at] + text + text[at:])
        parts += [of(draw, SPACES), of(draw, forms), of(draw, SPACES)]
        if draw.below(2):
            parts.append(of(draw, m.shown))
    return b"".join(parts)


def stored_text(draw: Draw, m: Material) -> bytes:
    """Return a text of tokens as the file stores them, with `▁` or byte-level characters."""
    return b"".join(of(draw, (of(draw, m.texts), SPACE, b" ")) for _ in range(few(draw, 6)))


def broken_bytes(draw: Draw, m: Material) -> bytes:
    """Return bytes that are not UTF-8: overlong, cut, stray, surrogates, or beyond U+10FFFF."""
    parts = []
    for _ in range(few(draw, 5)):
        any_bytes = bytes(draw.below(256) for _ in range(few(draw, 4)))
        parts.append(of(draw, (any_bytes, of(draw, BROKEN), of(draw, m.shown))))
    return b"".join(parts)


def edit_text(draw: Draw, m: Material) -> bytes:
    """Return a text in which a few bytes are inserted, removed, doubled or exchanged."""
    text = bytearray(PLAINER[draw.below(len(PLAINER))](draw, m))
    for _ in range(few(draw, 3)):
        at = draw.below(len(text) + 1)
        size = few(draw, 4)
        inserted = of(draw, (b" ", b"\n", b"'", b"a", b"\xcc\x81", bytes([draw.below(256)])))
        patch = of(draw, (b"", inserted, bytes(text[at : at + size]) * 2))
        text[at : at + draw.below(size)] = patch
    return bytes(text)


# --- all of them -------------------------------------------------------------------------------

Strategy = Callable[[Draw, Material], bytes]
STRATEGIES: tuple[Strategy, ...] = (
    *(
        glue_tokens,
        cut,
        overlapping,
        merge_neighbours,
        tied_scores,
        repeat_text,
        one_character,
        words,
    ),
    *(characters, traps, special_like, stored_text, broken_bytes, edit_text),
)
PLAINER = tuple(strategy for strategy in STRATEGIES if strategy is not edit_text)


def text(draw: Draw, m: Material) -> bytes:
    return STRATEGIES[draw.below(len(STRATEGIES))](draw, m)


def id_list(draw: Draw, m: Material) -> list[int]:
    """Return random ids, including special, unused and byte tokens."""
    return [draw.below(len(m.pieces)) for _ in range(few(draw, 12))]
