"""The vocabulary: bytes, the letters of the prompt, and the lines of the report, one token each."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.acid.vocabulary import ASKED, Vocabulary

LETTERS = "mknxpqrsg~"
# m looks for k, which stands behind it, and so does n, which stands behind k; p to s stand side by
# side near the end; g is a long token; ~ asks for all tests
PROMPT = "m" + "k" * 200 + "n" + "x" * 104 + "pqrs" + "xgx" + "~"
SPECIAL = ("<unk>", "<s>", "</s>")
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # token types of the GGUF specification
SPACE = "\u2581"  # what SentencePiece writes for a space
LONG = 4.0  # how long the letter g is


def role(letter: str) -> str:
    """The coordinate of a letter of the prompt."""
    return f"letter:{letter}"


def pieces(lines: Sequence[str]) -> list[str]:
    """lines: what each token of the report says, spaces as spaces. The ids are the places."""
    head = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, *LETTERS]
    return head + [line.replace(" ", SPACE) for line in lines]


def llama_keys(lines: Sequence[str]) -> dict[str, tuple[str, Any]]:
    """`tokenizer.ggml.*` of a SentencePiece vocabulary. No text is made of the report's tokens,
    because nothing is that is half of one."""
    tokens = pieces(lines)
    n_plain = len(tokens) - len(SPECIAL) - 256
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * n_plain
    scores = [0.0] * (len(SPECIAL) + 256) + [-float(rank) for rank in range(n_plain)]
    return {
        "tokenizer.ggml.model": ("STR", "llama"),
        "tokenizer.ggml.tokens": ("ARR[STR]", tokens),
        "tokenizer.ggml.scores": ("ARR[F32]", np.array(scores, "<f4")),
        "tokenizer.ggml.token_type": ("ARR[I32]", np.array(types, "<i4")),
        "tokenizer.ggml.bos_token_id": ("U32", 1),
        "tokenizer.ggml.eos_token_id": ("U32", 2),
        "tokenizer.ggml.unknown_token_id": ("U32", 0),
        "tokenizer.ggml.add_bos_token": ("BOOL", True),
        "tokenizer.ggml.add_eos_token": ("BOOL", False),
        "tokenizer.ggml.add_space_prefix": ("BOOL", True),
        "tokenizer.chat_template": ("STR", PROMPT),
    }


def letter_states() -> dict[str, tuple[str, float]]:
    """Each letter has a state of its own, and x none."""
    found = {letter: (role(letter), 1.0) for letter in LETTERS if letter != "x"}
    return {**found, "g": (role("g"), LONG), "~": (ASKED, 1.0)}


SENTENCEPIECE = Vocabulary(
    prompt=PROMPT,
    n_prompt=len(PROMPT) + 1,
    tokens=tuple(pieces([])),
    places=letter_states(),
    eos=2,
    keys=llama_keys,
)
