"""The vocabulary: bytes, the letters of the prompt, and the report's lines, which are one token
each."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from lockstep.harness.acid.vocabulary import ASKED, BOS, AcidVocabulary

LETTERS = "mknxpqrsg~"
SPECIAL = ("<unk>", "<s>", "</s>")
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # token types of the GGUF specification
SPACE = "\u2581"  # SentencePiece writes a space so
LONG = 4.0  # length of the letter g
PARSED = "<x>"  # a control token, and a text that looks like it
# "abc": b and c merge first, because they have the better score and the higher id. "def": two
# merges are equally good, and the left one is made. "uv": merged, although u and v have the better
# sum. é is no token.
PIECES = ("abc", "def", "uv", "\u00e9", "  ", f"{PARSED}j")
# number of their tokens; the last piece has four as text and two if it is parsed
N_PIECES = 2 + 2 + 1 + 2 + 1 + 3
# m looks for k, which stands after it, and n also looks for k, which stands before it. p to s stand
# next to each other near the end. g is a long token. ~ asks for all tests.
PROMPT = "hm" + "k" * 200 + "n" + "x" * 85 + "".join(f"{p}xx" for p in PIECES) + "pqrs" + "xgx~"
# scores of pieces with more than one character, or less; the score of a single character matters in
# no merge
SCORES: Mapping[str, float] = {
    "ab": -10.0,
    "bc": -5.0,
    "de": -10.0,
    "ef": -10.0,
    "uv": -50.0,
    "d": -21.0,
    **dict.fromkeys("abcefuv", -20.0),
    SPACE + "h": -3.0,
    SPACE + "j": -3.0,
    SPACE * 2: -2.0,
    SPACE: -3.0,
    PARSED: -1000.0,  # too low to be made of pieces, for engines that merge control tokens
}
MORE = (*"hj<>abcdefuv", "ab", "bc", "de", "ef", "uv", SPACE + "h", SPACE + "j", SPACE * 2)
# by what a test of the tokenizer looks for: the tokens that show it
SHOWN: Mapping[str, tuple[str, ...]] = {
    "with-space": (SPACE + "h",),
    "without-space": ("h",),
    "best-score": ("bc",),
    "first-token": ("ab",),
    "left-of-two": ("de",),
    "right-of-two": ("ef",),
    "merged": ("uv",),
    "best-sum": ("u",),
    "byte-of-utf-8": ("<0xC3>", "<0xA9>"),
    "byte-of-latin-1": ("<0x83>", "<0xC2>"),
    "unknown": ("<unk>",),
    "two-spaces": (SPACE * 2,),
    "one-space": (SPACE,),
    "parsed": (PARSED,),
    "as-text": ("<",),
    "space-behind": (SPACE + "j",),
    "nothing-behind": ("j",),
}


def role(letter: str) -> str:
    """Return the name of the coordinate of a letter in the prompt."""
    return f"letter:{letter}"


def pieces(lines: Sequence[str], more: Sequence[str] = (*MORE, PARSED)) -> list[str]:
    """Return the pieces in the order of their ids. lines: the text of each token of the report,
    with plain spaces."""
    head = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, *LETTERS, *more]
    return head + [line.replace(" ", SPACE) for line in lines]


def type_of(token: str) -> int:
    if token in (*SPECIAL[1:], PARSED):
        return CONTROL
    if token == SPECIAL[0]:
        return UNKNOWN
    return BYTE if token.startswith("<0x") else NORMAL


def llama_keys(
    lines: Sequence[str], more: Sequence[str] = (*MORE, PARSED), prompt: str = PROMPT
) -> dict[str, tuple[str, Any]]:
    """Return the `tokenizer.ggml.*` keys of a SentencePiece vocabulary. No text can merge into a
    token of the report, because no other token is the half of such a token."""
    tokens = pieces(lines, more)
    types = [type_of(token) for token in tokens]
    ranked = [-float(max(0, i - len(SPECIAL) - 256)) for i in range(len(tokens))]
    scores = [SCORES.get(token, own) for token, own in zip(tokens, ranked, strict=True)]
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
        "tokenizer.chat_template": ("STR", prompt),
    }


def letter_states() -> dict[str, tuple[str, float]]:
    """Return the state and the size of each letter. The letter x has no state."""
    found = {letter: (role(letter), 1.0) for letter in LETTERS if letter != "x"}
    return {**found, "g": (role("g"), LONG), "~": (ASKED, 1.0)}


def cut_states() -> dict[str, tuple[str, float]]:
    """Return the states and sizes of BOS and of the tokens that show how a text was tokenized."""
    shown = {token: (role(name), 1.0) for name, tokens in SHOWN.items() for token in tokens}
    return {SPECIAL[1]: (BOS, 1.0), **shown}


SENTENCEPIECE = AcidVocabulary(
    prompt=PROMPT,
    n_prompt=len(PROMPT) - len("".join(PIECES)) + N_PIECES,
    tokens=tuple(pieces([])),
    places={**letter_states(), **cut_states()},
    only_cut=frozenset(state for state, _ in cut_states().values()),
    eos=2,
    keys=llama_keys,
)

# prompt for models that test other parts than the tokenizer: from n on, each letter is a token
LETTER_PROMPT = "m" + "k" * 200 + "n" + "x" * 105 + "pqrs" + "xgx~"
ONLY_LETTERS = AcidVocabulary(
    prompt=LETTER_PROMPT,
    n_prompt=len(LETTER_PROMPT) + 1,
    tokens=tuple(pieces([], ())),
    places=letter_states(),
    eos=2,
    keys=partial(llama_keys, more=(), prompt=LETTER_PROMPT),
)
