"""Texts made of a vocabulary's own pieces: no fixed text makes merges of every vocabulary compete.

Which of two equal merges comes first shows only where a piece overlaps itself (`lll` of `ll`), and
where a pre-tokenizer cuts only if what is merged across the cut is a token. So both are looked for
in the pieces, besides pieces side by side at random.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from lockstep.engine.errors import EngineError
from lockstep.engine.tokenizers.base import Tokenizer
from lockstep.engine.tokenizers.vocabulary import Attr
from lockstep.harness.synth.draws import integers, stream

LONGEST = 16  # bytes of a piece: what is merged last is rarely longer
OF_A_KIND = 48  # texts: milliseconds of any tokenizer, and a question that fits on a few pages
PIECES = 10  # of a text at random
CONTRACTIONS = ("s", "t", "re", "ve", "m", "ll", "d")


def own_texts(tokenizer: Tokenizer, seed: int) -> list[bytes]:
    """No two alike, all of them UTF-8."""
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
    """Of some vocabularies there are texts that end llama.cpp's process; our tokenizer refuses."""
    try:
        for parse_special in (False, True):
            tokenizer.encode(text, parse_special=parse_special)
    except EngineError:
        return False
    return True


def ordinary(tokenizer: Tokenizer) -> list[str]:
    """What tokens stand for that are no control tokens, no single bytes and whole characters."""
    found = []
    for piece, attr in zip(tokenizer.pieces, tokenizer.vocabulary.attrs, strict=True):
        if piece and len(piece) <= LONGEST and not attr & (Attr.SPECIAL | Attr.BYTE):
            try:
                found.append(piece.decode())
            except UnicodeDecodeError:
                continue
    return found


def overlapping(pieces: Sequence[str]) -> Iterator[str]:
    """Three halves of a piece that is the same text twice, which can be merged in two ways."""
    known = set(pieces)
    for piece in pieces:
        half = piece[: len(piece) // 2]
        if half and half * 2 == piece and half in known:
            yield f"a{half * 3}"


def contracted_pieces(pieces: Sequence[str]) -> Iterator[str]:
    """Pieces that begin with the end of a contraction and go on with letters: who cuts there cannot
    merge them. In the case that they have, and in the other."""
    by_first: dict[str, list[str]] = defaultdict(list)
    for piece in pieces:
        if len(piece) > 1 and piece.isalpha():
            by_first[piece[0].lower()].append(piece)
    for ending in CONTRACTIONS:
        for piece in by_first[ending[-1]]:
            for before in dict.fromkeys((ending[:-1], ending[:-1].upper())):
                yield f"it'{before}{piece}"


def glue_pieces(pieces: Sequence[str], seed: int) -> Iterator[str]:
    """Pieces side by side."""
    at = integers(stream(seed, "glued texts"), OF_A_KIND * PIECES, len(pieces))
    for row in at.reshape(OF_A_KIND, PIECES):
        yield "".join(pieces[i] for i in row)


def spread(texts: Sequence[str], seed: int, name: str) -> list[str]:
    """All, or as many as are asked for, drawn from all over."""
    if len(texts) <= OF_A_KIND:
        return list(texts)
    drawn = integers(stream(seed, f"{name} texts"), OF_A_KIND, len(texts))
    return [texts[i] for i in sorted({*drawn.tolist()})]
