"""The "plamo2" tokenizer on a vocabulary written by hand: each rule and each key."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import InvalidModel
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.engine.tokenizers.plamo2 import UNKNOWN, WORST, Plamo2Tokenizer, gain_of
from tests.tokenizer_cases import (
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    Case,
    Value,
    Word,
    broken_rules,
    byte_words,
    decode,
    plain,
    vocabulary,
)
from tests.tokenizer_cases import UNKNOWN as UNKNOWN_TYPE

WORDS: list[Word] = [
    ("<|plamo:unk|>", 0, UNKNOWN_TYPE),
    ("<|plamo:bos|>", 0, CONTROL),
    ("<|plamo:eos|>", 0, CONTROL),
    ("<|plamo:pad|>", 0, CONTROL),
    *byte_words(),
    *((letter, -5.0, NORMAL) for letter in "abcdefghk日 "),
    # ties: "ab" + "c" and "a" + "bc"; and a long token with a worse sum
    ("ab", -7, NORMAL),
    ("bc", -7, NORMAL),
    ("de", -3, NORMAL),
    ("defg", -14, NORMAL),
    ("efg", -3, NORMAL),
    ("日本", -6, NORMAL),
    ("本語", -4, NORMAL),
    ("gg", -2000, NORMAL),  # equal to no token
    ("hh", -1000, NORMAL),  # hides shorter tokens
    ("kk", -np.inf, NORMAL),
    ("▁a", -1, NORMAL),
    ("\ufeff", -1, NORMAL),
    ("zz", -1, UNUSED),
    ("<tool>", -1, USER_DEFINED),
    ("</s>", -1, NORMAL),
    ("a<0x41>", -90, NORMAL),
]  # fmt: skip
TEXTS = [text for text, _, _ in WORDS]


def tiny(**changes: Any) -> dict[str, Value]:
    return vocabulary("plamo2", WORDS, **changes)


def without(text: str) -> dict[str, Value]:
    return vocabulary("plamo2", [word for word in WORDS if word[0] != text])


def ids(*texts: str | int) -> list[int]:
    """Return the ids of texts; a number stands for the token of that byte."""
    return [TEXTS.index(f"<0x{text:02X}>" if isinstance(text, int) else text) for text in texts]


# --- each rule ------------------------------------------------------------------------------------


CASES = (
    Case("the cheapest way wins, not the longest token", plain("defg"), ids("d", "efg")),
    Case("nor the shortest ones", plain("de"), ids("de")),
    Case("of equal costs the longest first step", plain("abc"), ids("ab", "c")),
    Case("characters count, not bytes", plain("日本語"), ids("日", "本語")),
    Case("what is no token is spelled in bytes", plain("a語q"), ids("a", 0xE8, 0xAA, 0x9E, 0x71)),
    Case("in all of them", plain("é🙂"), ids(0xC3, 0xA9, 0xF0, 0x9F, 0x99, 0x82)),
    Case("a byte order mark goes", plain("\ufeffa\ufeff"), ids("a", "\ufeff")),
    Case("after special tokens too", plain("a<tool>\ufeffb"), ids("a", "<tool>", "b")),
    Case("a score of -2000 is none", plain("gg"), ids("g", "g")),
    Case("one of -1000 hides the shorter tokens", plain("hh"), ids("hh")),
    Case("minus infinity is none", plain("kk"), ids("k", "k")),
    Case("endings of tokens lead to their beginnings", plain("xdefg"), ids(0x78, "d", "efg")),
    Case("a token grows over endings that are none", plain("a<0x41>"), ids("a<0x41>")),
    Case("bytes that are no UTF-8 are U+FFFD", plain(b"a\xff"), ids("a", 0xEF, 0xBF, 0xBD)),
    Case("surrogates and what is beyond Unicode stay", plain(b"\xed\xa0\x80\xf7\xbf\xbf\xbf"),
         ids(0xED, 0xA0, 0x80, 0xF7, 0xBF, 0xBF, 0xBF)),
    Case("spaces stay", plain(" a"), ids(" ", "a")),
    Case("nothing goes around a text", plain("a", add_special=True), ids("a")),
    Case("control tokens are found in any text", plain("<|plamo:eos|>"), ids("<|plamo:eos|>")),
    Case("tokens are written as stored", decode(ids("▁a", 0x41)), "▁aA".encode()),
    Case("unused ones too", decode(ids("zz")), b"zz"),
)  # fmt: skip


def test_tokenizer_follows_every_rule() -> None:
    assert broken_rules(Plamo2Tokenizer, tiny(), CASES) == []


def test_byte_order_mark_is_removed() -> None:
    assert tokenizer_of(tiny()).encode("\ufeff".encode()) == []


def test_plamo_end_token_makes_the_old_end_token_normal() -> None:
    tokenizer = tokenizer_of(tiny())
    assert tokenizer.vocabulary.eog == {2}
    assert tokenizer.encode(b"</s>") == ids("</s>")


@pytest.mark.parametrize(
    ("score", "gain"),
    [
        (-1.0, -10_000),
        (float(np.float32(-0.00005)), -0),  # -0.49999... as float32
        (0.03125, 313),  # a half is rounded away from zero
        (-0.03125, -313),
        (np.inf, -20_000_000),
        (np.nan, -20_000_000),
        (1e9, -20_000_000),  # exceeds 32 bits
    ],
)
def test_gains_are_rounded_as_in_c(score: float, gain: int) -> None:
    assert gain_of(score) == gain


def test_missing_byte_token_or_byte_token_with_id_0_is_refused() -> None:
    with pytest.raises(InvalidModel, match=r"tokenizer.ggml.tokens .*<0x41>"):
        tokenizer_of(without("<0x41>"))
    moved = [WORDS[4], *WORDS[:4], *WORDS[5:]]
    with pytest.raises(InvalidModel, match=r"tokenizer.ggml.tokens .*<0x00> with an id > 0"):
        tokenizer_of(vocabulary("plamo2", moved))


def test_invalid_utf_8_tokens_are_refused() -> None:
    with pytest.raises(InvalidModel, match=r"tokenizer.ggml.tokens must be UTF-8, and token 260"):
        tokenizer_of(vocabulary("plamo2", [*WORDS[:260], ("a\udce6", 0, NORMAL)]))


def test_unreachable_token_costs_more_than_any_text() -> None:
    longest = 2**31  # bytes of the longest text of llama.cpp
    assert longest * -UNKNOWN < WORST


class EveryState(Plamo2Tokenizer):
    """A tokenizer that visits all endings at each character."""

    looked = 0

    def extend_state(self, character: str, state: str) -> str:
        self.looked += len(self.known_steps.get(state, ())) + len(state)
        return super().extend_state(character, state)


def test_cost_of_a_character_does_not_grow_with_the_text() -> None:
    tokenizer = EveryState(tiny())
    looked = []
    for length in (100, 400):
        tokenizer.looked = 0
        tokenizer.encode(b"defg" * length)
        looked.append(tokenizer.looked)
    assert looked[1] < 4.1 * looked[0]


@pytest.mark.parametrize("word", [b"q", b"defg"], ids=str)
def test_a_word_of_half_a_megabyte_is_encoded(word: bytes) -> None:
    count = 2**19 // len(word)
    once = tokenizer_of(tiny()).encode(word)
    assert tokenizer_of(tiny()).encode(word * count) == once * count


def test_types_come_from_the_file() -> None:
    tokenizer = tokenizer_of(tiny())
    tokenizer.vocabulary = replace(tokenizer.vocabulary, attrs=())
    assert list(tokenizer.segment(b"abc")) == ids("ab", "c")
