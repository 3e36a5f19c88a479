"""A seeded SentencePiece vocabulary whose scores are not in the order of the ids, with many equal
scores."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.harness.synth import vocabulary
from lockstep.harness.synth.draws import integers, stream
from lockstep.harness.synth.vocabularies.glue import USER_DEFINED

SHOWN = ("<tool>", "▁▁▁")  # user-defined
SMALLEST = vocabulary.SMALLEST + len(SHOWN)


def keys(n_vocab: int, seed: int) -> Mapping[str, tuple[str, Any]]:
    """Return bytes, characters and pieces as in a vocabulary of kind llama, and `add_eos_token`."""
    made = dict(vocabulary.sentencepiece(n_vocab - len(SHOWN), seed))
    tokens = [*made["tokenizer.ggml.tokens"][1], *SHOWN]
    pieces = n_vocab - len(SHOWN) - vocabulary.SMALLEST
    steps = integers(stream(seed, "tokenizer.ggml.scores"), pieces, 1 + pieces // 3)
    scores = np.zeros(n_vocab, np.float32)
    scores[vocabulary.SMALLEST : n_vocab - len(SHOWN)] = -steps
    types = [*made["tokenizer.ggml.token_type"][1].tolist(), *[USER_DEFINED] * len(SHOWN)]
    return {
        **made,
        "tokenizer.ggml.tokens": ("ARR[STR]", tokens),
        "tokenizer.ggml.scores": ("ARR[F32]", scores),
        "tokenizer.ggml.token_type": ("ARR[I32]", np.array(types, np.int32)),
        "tokenizer.ggml.add_bos_token": ("BOOL", True),
        "tokenizer.ggml.add_eos_token": ("BOOL", True),
    }
