"""Pieces that join two earlier pieces, so that merging can reach every piece."""

from collections.abc import Callable, Iterable, Sequence

from lockstep.harness.synth.draws import integers, stream

LONGEST = 12  # characters of a piece
ALPHABET = "etaoinshrdlucmfwypvbgkjqxz" + "0123456789.,!?'-ETASN" + "éñßд你好한ก"
DRAWS = 512  # pairs that are drawn at a time
PATIENCE = 200  # rounds of DRAWS pairs without a new piece, before giving up

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # token types of GGUF

Merge = tuple[str, str]


def merges_of(
    letters: Sequence[str],
    n: int,
    seed: int,
    legal: Callable[[str], bool] = lambda _: True,
    taken: Iterable[str] = (),
) -> list[Merge]:
    """Return n merges of letters or of earlier results. Each merge has a different result."""
    pieces, known = list(letters), {*letters, *taken}
    merges: list[Merge] = []
    bits = stream(seed, "tokenizer.ggml.merges")
    idle = 0
    while idle < PATIENCE:
        before = len(merges)
        for left, right in integers(bits, 2 * DRAWS, 1 << 31).reshape(-1, 2).tolist():
            # the square prefers early pieces, as real vocabularies do
            a, b = (pieces[int((i / 2**31) ** 2 * len(pieces))] for i in (left, right))
            piece = a + b
            if len(merges) == n:
                return merges
            if piece not in known and len(piece) <= LONGEST and legal(piece):
                merges.append((a, b))
                pieces.append(piece)
                known.add(piece)
        idle = 0 if len(merges) > before else idle + 1
    raise ValueError(f"{len(letters)} letters do not make {n} pieces of at most {LONGEST}")


def glue_letters(
    letters: Sequence[str],
    n: int,
    seed: int,
    legal: Callable[[str], bool] = lambda _: True,
) -> list[str]:
    """Return n pieces: first the letters, then pieces made from them."""
    return [*letters, *(a + b for a, b in merges_of(letters, n - len(letters), seed, legal))]


def words_only(piece: str) -> bool:
    """Return True if the piece has a space only at its beginning."""
    return "▁" not in piece[1:]


def bytes_as_tokens() -> list[str]:
    return [f"<0x{byte:02X}>" for byte in range(256)]
