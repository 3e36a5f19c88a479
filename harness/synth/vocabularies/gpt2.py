"""A seeded byte-level BPE vocabulary: 256 bytes in their visible form, and merges of these
bytes."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.harness.synth.vocabularies.glue import CONTROL, NORMAL, USER_DEFINED, merges_of

SPECIAL = ("<|endoftext|>", "<|fim_prefix|>", "<|im_start|>", "<|im_end|>")
SHOWN = ("<tool>", "<tool> ")  # user-defined; one is a prefix of the other
SMALLEST = 256 + len(SPECIAL) + len(SHOWN) + 8
SEEN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
UNSEEN = [byte for byte in range(256) if byte not in SEEN]
VISIBLE = {byte: chr(byte) for byte in SEEN} | {b: chr(0x100 + i) for i, b in enumerate(UNSEEN)}
SPACE, NEWLINE, TAB = VISIBLE[0x20], VISIBLE[0x0A], VISIBLE[0x09]
# texts that pre-tokenizers do not split; other pieces could never occur
ONE_WORD = re.compile(
    rf"{SPACE}?([A-Za-z]+|[0-9]+|[.,!?'_=()-]+|[^\x00-\x7f{SPACE}{NEWLINE}{TAB}]+)"
    rf"|{SPACE}+|{NEWLINE}+|'[a-z]+"
)
COMMON = " etaoinshrdlucmfwypvbgkETASN0123456789.,!?'-_\n\t=()" + "éñ你好"


def keys(n_vocab: int, seed: int) -> Mapping[str, tuple[str, Any]]:
    letters = dict.fromkeys(VISIBLE[byte] for byte in COMMON.encode())
    merges = merges_of(
        list(letters),
        n_vocab - 256 - len(SPECIAL) - len(SHOWN),
        seed,
        legal=lambda piece: bool(ONE_WORD.fullmatch(piece)),
        taken=VISIBLE.values(),
    )
    tokens = [*VISIBLE.values(), *(a + b for a, b in merges), *SHOWN, *SPECIAL]
    plain = 256 + len(merges)
    types = [NORMAL] * plain + [USER_DEFINED] * len(SHOWN) + [CONTROL] * len(SPECIAL)
    return {
        "tokenizer.ggml.model": ("STR", "gpt2"),
        "tokenizer.ggml.pre": ("STR", "gpt-2"),
        "tokenizer.ggml.tokens": ("ARR[STR]", tokens),
        "tokenizer.ggml.token_type": ("ARR[I32]", np.array(types, np.int32)),
        "tokenizer.ggml.merges": ("ARR[STR]", [f"{a} {b}" for a, b in merges]),
        "tokenizer.ggml.bos_token_id": ("U32", tokens.index("<|endoftext|>")),
        "tokenizer.ggml.eos_token_id": ("U32", tokens.index("<|endoftext|>")),
        "tokenizer.ggml.add_bos_token": ("BOOL", True),
    }
