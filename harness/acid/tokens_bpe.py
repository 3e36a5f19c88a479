"""A vocabulary of bytes and merges. The ids of the acid prompt show how the tokenizer works."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.harness.acid.tokens import CONTROL, LETTERS, NORMAL, letter_states, role
from lockstep.harness.acid.vocabulary import BOS, AcidVocabulary, Keys

FIRST, LAST, WORD = "<|first|>", "<|last|>", "<|word|>"  # BOS, EOS, and a user-defined token
USER_DEFINED = 4  # token type of the GGUF specification
SPACE = "\u0120"  # byte-level BPE writes a space so
# "abc": b and c merge first, and a remains. " 12": one token; two if words of digits have no space;
# three if each digit is a word.
MERGES = ("b c", "a b", "1 2", f"{SPACE} 12")
# é has two bytes without a merge; in Latin-1 it is a single byte, different from both
PIECES = ("abc", " 12", "\u00e9", WORD)
# with BOS, the prompt has an odd number of tokens, for engines that read them in pairs
PROMPT = "m" + "k" * 200 + "n" + "x" * 96 + "".join(f"{p}xx" for p in PIECES) + "pqrs" + "xgx" + "~"
# by what a test looks for: the tokens that show it
SHOWN: Mapping[str, tuple[str, ...]] = {
    "best-merge": ("bc",),
    "left-merge": ("ab",),
    "digits-apart": ("1",),
    "digits-together": ("12",),
    "space-and-digits": (f"{SPACE}12",),
    "byte-of-utf-8": ("\u00c3",),
    "byte-of-latin-1": ("\u00e9",),
    "word": (WORD,),
    "word-in-pieces": ("<",),
}


def visible(byte: int) -> str:
    """Return the character for a byte: the byte itself, or a character from U+0100 on for an
    invisible byte."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in seen:
        return chr(byte)
    return chr(0x100 + [each for each in range(256) if each not in seen].index(byte))


SPELLED = tuple(map(visible, range(256)))
TOKENS = (FIRST, LAST, WORD, *SPELLED, *(merge.replace(" ", "") for merge in MERGES))


def spell(text: str) -> str:
    return "".join(SPELLED[byte] for byte in text.encode())


def places(letters: str) -> Mapping[str, tuple[str, float]]:
    """Return the states and sizes of the prompt's letters, of the first token, and of tokens that
    show how a text was tokenized."""
    found = {letter: state for letter, state in letter_states().items() if letter in letters}
    shown = {token: (role(name), 1.0) for name, tokens in SHOWN.items() for token in tokens}
    return {**found, FIRST: (BOS, 1.0), **shown}


@dataclass(frozen=True)
class Bpe:
    """Returns the `tokenizer.ggml.*` keys of byte-level merges with this pre-tokenizer."""

    pre: str

    def __call__(self, lines: Sequence[str]) -> dict[str, tuple[str, Any]]:
        tokens = [*TOKENS, *map(spell, lines)]
        types = [CONTROL, CONTROL, USER_DEFINED] + [NORMAL] * (len(tokens) - 3)
        keys: Keys = {
            "tokenizer.ggml.model": ("STR", "gpt2"),
            "tokenizer.ggml.pre": ("STR", self.pre),
            "tokenizer.ggml.tokens": ("ARR[STR]", tokens),
            "tokenizer.ggml.token_type": ("ARR[I32]", np.array(types, "<i4")),
            "tokenizer.ggml.merges": ("ARR[STR]", list(MERGES)),
            "tokenizer.ggml.bos_token_id": ("U32", 0),
            "tokenizer.ggml.eos_token_id": ("U32", 1),
            "tokenizer.ggml.add_bos_token": ("BOOL", True),
            "tokenizer.ggml.add_eos_token": ("BOOL", False),
            "tokenizer.chat_template": ("STR", PROMPT),
        }
        return keys


def vocabulary(pre: str, n_digits: int, letters: str = LETTERS) -> AcidVocabulary:
    """Return a vocabulary. n_digits: the number of tokens for " 12"; letters: the letters that
    tests use."""
    n_prompt = len(PROMPT) - len("".join(PIECES)) + 2 + n_digits + 2 + 1
    return AcidVocabulary(
        prompt=PROMPT,
        n_prompt=n_prompt,
        tokens=TOKENS,
        places=places(letters),
        eos=1,
        keys=Bpe(pre),
    )
