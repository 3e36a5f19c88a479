"""A seeded WordPiece vocabulary, in which every letter occurs as the beginning of a word and as a
continuation."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.harness.synth.vocabularies.glue import CONTROL, NORMAL, glue_letters

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# lower case without accents, like normalised text; capitals never occur
LETTERS = "etaoinshrdlucmfwypvbgkjqxz0123456789.,!?'-ßд你好ก"
SMALLEST = len(SPECIAL) + 2 * len(LETTERS) + 8


def keys(n_vocab: int, seed: int) -> Mapping[str, tuple[str, Any]]:
    """Return the keys. GGUF marks the beginning of a word with `▁`, while original WordPiece
    vocabularies mark continuations with `##`."""
    letters = [*LETTERS, *(f"▁{letter}" for letter in LETTERS)]
    pieces = glue_letters(letters, n_vocab - len(SPECIAL), seed, one_word)
    types = [CONTROL] * len(SPECIAL) + [NORMAL] * len(pieces)
    return {
        "tokenizer.ggml.model": ("STR", "bert"),
        "tokenizer.ggml.pre": ("STR", "default"),
        "tokenizer.ggml.tokens": ("ARR[STR]", [*SPECIAL, *pieces]),
        "tokenizer.ggml.token_type": ("ARR[I32]", np.array(types, np.int32)),
        "tokenizer.ggml.padding_token_id": ("U32", 0),
        "tokenizer.ggml.unknown_token_id": ("U32", 1),
        "tokenizer.ggml.bos_token_id": ("U32", 2),
        # this is the spelling of the GGUF specification
        "tokenizer.ggml.seperator_token_id": ("U32", 3),
        "tokenizer.ggml.mask_token_id": ("U32", 4),
    }


def one_word(piece: str) -> bool:
    """Return True for a single word without punctuation or Chinese characters, which always form
    their own words."""
    return piece.removeprefix("▁").isalnum() and not any(c in piece for c in "你好")
