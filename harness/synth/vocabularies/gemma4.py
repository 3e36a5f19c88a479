"""A seeded vocabulary for Gemma 4's tokenizer: merges on plain UTF-8, with `▁` for spaces."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.harness.synth.vocabularies.glue import (
    ALPHABET,
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    bytes_as_tokens,
    merges_of,
)

SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>")
SHOWN = ("<start_of_image>", "\n\n", "\n\n\n")  # runs of newlines are split off
LETTERS = ["▁", "\n", *ALPHABET]
SMALLEST = len(SPECIAL) + len(SHOWN) + 256 + len(LETTERS) + 8


def keys(n_vocab: int, seed: int) -> Mapping[str, tuple[str, Any]]:
    room = n_vocab - len(SPECIAL) - len(SHOWN) - 256 - len(LETTERS)
    merges = merges_of(LETTERS, room, seed, lambda piece: "\n" not in piece, taken=SHOWN)
    pieces = [*LETTERS, *(a + b for a, b in merges)]
    tokens = [*SPECIAL, *bytes_as_tokens(), *pieces, *SHOWN]
    types = [CONTROL] * 3 + [UNKNOWN] + [BYTE] * 256 + [NORMAL] * len(pieces)
    types += [USER_DEFINED] + [NORMAL] * (len(SHOWN) - 1)
    # these vocabularies have scores, but they are not used
    scores = np.zeros(len(tokens), np.float32)
    return {
        "tokenizer.ggml.model": ("STR", "gemma4"),
        "tokenizer.ggml.tokens": ("ARR[STR]", tokens),
        "tokenizer.ggml.scores": ("ARR[F32]", scores),
        "tokenizer.ggml.token_type": ("ARR[I32]", np.array(types, np.int32)),
        "tokenizer.ggml.merges": ("ARR[STR]", [f"{a} {b}" for a, b in merges]),
        "tokenizer.ggml.padding_token_id": ("U32", 0),
        "tokenizer.ggml.eos_token_id": ("U32", 1),
        "tokenizer.ggml.bos_token_id": ("U32", 2),
        "tokenizer.ggml.unknown_token_id": ("U32", 3),
        "tokenizer.ggml.add_space_prefix": ("BOOL", False),
        "tokenizer.ggml.add_bos_token": ("BOOL", True),
    }
