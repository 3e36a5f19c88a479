"""A seeded vocabulary for PLaMo-2's tokenizer: bytes, letters, and pieces with scores."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.harness.synth.draws import integers, stream
from lockstep.harness.synth.vocabularies.glue import (
    ALPHABET,
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    bytes_as_tokens,
    glue_letters,
)

SPECIAL = ("<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>")
LETTERS = [*ALPHABET, " ", "\n"]
SMALLEST = len(SPECIAL) + 256 + len(LETTERS) + 8


def keys(n_vocab: int, seed: int) -> Mapping[str, tuple[str, Any]]:
    pieces = glue_letters(LETTERS, n_vocab - len(SPECIAL) - 256, seed)
    # multiples of a quarter, so that many sums are equal; bytes have no score
    steps = integers(stream(seed, "tokenizer.ggml.scores"), len(pieces), 40)
    scores = [0.0] * (len(SPECIAL) + 256) + (-1 - steps / 4).tolist()
    types = [UNKNOWN] + [CONTROL] * 3 + [BYTE] * 256 + [NORMAL] * len(pieces)
    return {
        "tokenizer.ggml.model": ("STR", "plamo2"),
        "tokenizer.ggml.tokens": ("ARR[STR]", [*SPECIAL, *bytes_as_tokens(), *pieces]),
        "tokenizer.ggml.scores": ("ARR[F32]", np.array(scores, np.float32)),
        "tokenizer.ggml.token_type": ("ARR[I32]", np.array(types, np.int32)),
        "tokenizer.ggml.unknown_token_id": ("U32", 0),
        "tokenizer.ggml.bos_token_id": ("U32", 1),
        "tokenizer.ggml.eos_token_id": ("U32", 2),
        "tokenizer.ggml.padding_token_id": ("U32", 3),
        "tokenizer.ggml.add_bos_token": ("BOOL", True),
    }
