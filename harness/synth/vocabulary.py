"""A seeded SentencePiece vocabulary: bytes, characters, and pieces that join two other pieces."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.harness.synth.generator import integers, stream

SPECIAL = ("<unk>", "<s>", "</s>")
CHARACTERS = "▁" + "etaoinshrdlucmfwypvbgkjqxz" + "0123456789.,!?'-ETAS" + "éñßд你好"
SMALLEST = len(SPECIAL) + 256 + len(CHARACTERS)
LONGEST = 12  # characters of a piece

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # token types of the GGUF specification


def sentencepiece(n_vocab: int, seed: int) -> Mapping[str, tuple[str, Any]]:
    """Return the `tokenizer.ggml.*` keys of a vocabulary of this size."""
    if n_vocab < SMALLEST:
        raise ValueError(f"a vocabulary needs at least {SMALLEST} tokens, got {n_vocab}")
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    pieces = glued_pieces(n_vocab - len(tokens), seed)
    # pieces that were glued earlier are likelier; bytes and special tokens have no score
    scores = [0.0] * len(tokens) + [-float(rank) for rank in range(len(pieces))]
    return {
        "tokenizer.ggml.model": ("STR", "llama"),
        "tokenizer.ggml.tokens": ("ARR[STR]", tokens + pieces),
        "tokenizer.ggml.scores": ("ARR[F32]", np.array(scores, np.float32)),
        "tokenizer.ggml.token_type": (
            "ARR[I32]",
            np.array(types + [NORMAL] * len(pieces), np.int32),
        ),
        "tokenizer.ggml.bos_token_id": ("U32", 1),
        "tokenizer.ggml.eos_token_id": ("U32", 2),
        "tokenizer.ggml.unknown_token_id": ("U32", 0),
    }


def glued_pieces(n: int, seed: int) -> list[str]:
    """Return the characters, then pieces that join two earlier pieces, so that merging can reach
    every piece."""
    pieces = list(CHARACTERS)
    known = set(pieces)
    bits = stream(seed, "tokenizer.ggml.tokens")
    while len(pieces) < n:
        for left, right in integers(bits, 512, 1 << 31).reshape(-1, 2):
            # the square prefers early pieces, as real vocabularies do
            at = [int((i / 2**31) ** 2 * len(pieces)) for i in (left, right)]
            piece = pieces[at[0]] + pieces[at[1]]
            if len(pieces) < n and piece not in known and len(piece) <= LONGEST:
                pieces.append(piece)
                known.add(piece)
    return pieces
