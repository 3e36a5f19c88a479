"""A seeded unigram vocabulary with its own character map."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.harness.synth.draws import integers, stream
from lockstep.harness.synth.vocabularies.charsmap import charsmap
from lockstep.harness.synth.vocabularies.glue import (
    ALPHABET,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    glue_letters,
    words_only,
)

SPECIAL = ("<pad>", "</s>", "<unk>")
SHOWN = ("<extra>", "ﬁx")  # user-defined; `ﬁx` is not normalised, although `ﬁ` is
DEAD = ("<unused0>",)
LETTERS = ["▁", *ALPHABET]
SMALLEST = len(SPECIAL) + len(SHOWN) + len(DEAD) + len(LETTERS) + 8
# one to one, one to many, many to one, one to nothing, and one that is a prefix of another
REPLACED = dict(
    (
        *(("\t", " "), ("\n", " "), ("\u00a0", " "), ("\u3000", " "), ("\u200b", "")),
        *(("\u00ad", ""), ("ﬁ", "fi"), ("ﬂ", "fl"), ("½", "1/2"), ("…", "..."), ("²", "2")),
        *(("Å", "a"), ("\u212b", "a"), ("e\u0301", "é"), ("E\u0301", "é"), ("n\u0303", "ñ")),
        *(("A", "a"), ("B", "b"), ("K", "k"), ("Ｅ", "E"), ("ｅ", "e"), ("！", "!"), ("①", "1")),
        *(("ﷺ", "salla allah"), ("が", "か"), ("か\u3099", "か"), ("㎏", "kg")),
    )
)


def keys(n_vocab: int, seed: int) -> Mapping[str, tuple[str, Any]]:
    pieces = glue_letters(LETTERS, n_vocab - len(SPECIAL + SHOWN + DEAD), seed, words_only)
    # multiples of an eighth, so that sums are exact and many are equal
    steps = integers(stream(seed, "tokenizer.ggml.scores"), len(pieces), 64)
    scores = [0.0] * 3 + (-2 - steps / 8).tolist() + [0.0] * len(SHOWN + DEAD)
    types = [CONTROL, CONTROL, UNKNOWN] + [NORMAL] * len(pieces)
    types += [USER_DEFINED] * len(SHOWN) + [UNUSED] * len(DEAD)
    blob = np.frombuffer(charsmap(REPLACED), np.uint8)
    return {
        "tokenizer.ggml.model": ("STR", "t5"),
        "tokenizer.ggml.pre": ("STR", "default"),
        "tokenizer.ggml.tokens": ("ARR[STR]", [*SPECIAL, *pieces, *SHOWN, *DEAD]),
        "tokenizer.ggml.scores": ("ARR[F32]", np.array(scores, np.float32)),
        "tokenizer.ggml.token_type": ("ARR[I32]", np.array(types, np.int32)),
        "tokenizer.ggml.precompiled_charsmap": ("ARR[U8]", blob),
        "tokenizer.ggml.add_space_prefix": ("BOOL", True),
        "tokenizer.ggml.remove_extra_whitespaces": ("BOOL", True),
        "tokenizer.ggml.padding_token_id": ("U32", 0),
        "tokenizer.ggml.eos_token_id": ("U32", 1),
        "tokenizer.ggml.unknown_token_id": ("U32", 2),
        "tokenizer.ggml.add_eos_token": ("BOOL", True),
    }
