"""A seeded vocabulary for RWKV's greedy trie: all bytes, and runs of several bytes, written with
escapes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.harness.synth.vocabularies.glue import ALPHABET, CONTROL, NORMAL, merges_of

FIRST = "<s>"
LETTERS = [*ALPHABET, " ", "\n", "\t", "\\"]
WIDE = [letter for letter in LETTERS if len(letter.encode()) > 1]
SMALLEST = 1 + 256 + len(WIDE) + 8


def keys(n_vocab: int, seed: int) -> Mapping[str, tuple[str, Any]]:
    merges = merges_of(LETTERS, n_vocab - 1 - 256 - len(WIDE), seed)
    pieces = [*WIDE, *(a + b for a, b in merges)]
    tokens = [FIRST, *(rf"\x{byte:02x}" for byte in range(256)), *map(escape, pieces)]
    types = [CONTROL] + [NORMAL] * (len(tokens) - 1)
    return {
        "tokenizer.ggml.model": ("STR", "rwkv"),
        "tokenizer.ggml.tokens": ("ARR[STR]", tokens),
        "tokenizer.ggml.token_type": ("ARR[I32]", np.array(types, np.int32)),
    }


def escape(piece: str) -> str:
    return piece.translate({ord("\\"): r"\\", ord("\n"): r"\n", ord("\t"): r"\t"})
