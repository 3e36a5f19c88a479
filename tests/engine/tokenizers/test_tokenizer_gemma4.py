"""The "gemma4" tokenizer on a vocabulary written by hand: each rule and each key."""

from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import EngineError, InvalidModel
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.engine.tokenizers.gemma4 import Gemma4Tokenizer
from tests.tokenizer_cases import (
    CONTROL,
    NORMAL,
    UNKNOWN,
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

WORDS: list[Word] = [
    *((text, 0, CONTROL) for text in ("<pad>", "<eos>", "<bos>")),
    ("<unk>", 0, UNKNOWN),
    *(word for word in byte_words() if word[0] != "<0x71>"),  # q has no byte token
    *((letter, 0, NORMAL) for letter in "abcdehlo▁,.!日本語\ufffd/\n"),
    *((text, 0, NORMAL) for text in ("\n\n", "\n\n\n\n", "▁▁", "▁▁▁", "▁a", "ab", "bc", "cd")),
    *((text, 0, NORMAL) for text in ("日本", "本語", "he", "hello", "a▁", "dd")),
    ("<tool>", 0, USER_DEFINED),
    ("</s>", 0, NORMAL),
    ("<|tool_response>", 0, CONTROL),
]
TEXTS = [text for text, _, _ in WORDS]
MERGES = [
    "b c", "a b", "c d", "▁ a", "▁ ▁", "▁▁ ▁", "日 本", "本 語", "h e", "l l", "he ll", "hell o",
    "d d", "dd dd", "\n \n", "a b", "a ▁", "e e", "nospace", " a", "a \n", "a b c",
]  # fmt: skip
ROLES = {"bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3, "padding_token_id": 0}


def tiny(**changes: Any) -> dict[str, Value]:
    usual = {"merges": MERGES, "add_space_prefix": False} | ROLES
    return vocabulary("gemma4", WORDS, **(usual | changes))


def ids(*texts: str | int) -> list[int]:
    """Return the ids of texts; a number stands for the token of that byte."""
    return [TEXTS.index(f"<0x{text:02X}>" if isinstance(text, int) else text) for text in texts]


# --- each rule ------------------------------------------------------------------------------------


CASES = (
    Case("the lowest rank is merged first", plain("abcd"), ids("a", "bc", "d")),
    Case("equal ranks from the left", plain("▁▁▁▁▁"), ids("▁▁", "▁▁▁")),
    Case("of two equal merges the first counts", plain("▁ab"), ids("▁", "ab")),
    Case("merges go through what is no token", plain("hello"), ids("hello")),
    Case("and may end there, to be spelled in bytes", plain("ee"), ids(0x65, 0x65)),
    Case("a line is merged as a whole", plain("a a"), ids("a", "▁a")),
    Case("newlines are apart", plain("a\nb"), ids("a", "\n", "b")),
    Case("a run of them that is a token is one", plain("\n\n\n\n"), ids("\n\n\n\n")),
    Case("any other run is merged", plain("\n\n\n"), ids("\n\n", "\n")),
    Case("spaces are tokens", plain("   a"), ids("▁▁", "▁a")),
    Case("none is put before", plain("a"), ids("a")),
    Case("what is no token is spelled in bytes", plain("é"), ids(0xC3, 0xA9)),
    Case("bytes without a token are lost", plain("aqb"), ids("a", "b")),
    Case("bytes that are no UTF-8 are U+FFFD", plain(b"a\xffb"), ids("a", "\ufffd", "b")),
    Case("overlong forms become short", plain(b"a\xc0\xaf"), ids("a", "/")),
    Case("BOS comes whatever the file says", plain("a", add_special=True), ids("<bos>", "a")),
    Case("and once", plain("", add_special=True), ids("<bos>")),
    Case("the file's pre-tokenizer is not asked", plain("a a"), ids("a", "▁a")),
    Case("special texts are only text", plain("<eos>", parse_special=False),
         ids(0x3C, "e", "o", 0x73, 0x3E)),
    Case("decoding drops spaces", decode(ids("a", "▁", ",", "▁", "!")), b"a,!"),
    Case("a lone byte is written", decode(ids("a", 0xE6)), b"a\xe6"),
    Case("the old end is a normal token", decode(ids("</s>")), b"</s>"),
)  # fmt: skip


def test_tokenizer_follows_every_rule() -> None:
    assert broken_rules(Gemma4Tokenizer, tiny(add_bos_token=False), CASES) == []


def test_pre_tokenizer_of_the_file_is_ignored() -> None:
    assert tokenizer_of(tiny(pre="no such thing")).encode(b"a a") == ids("<bos>", "a", "▁a")


def test_a_space_prefix_is_for_decoding_only() -> None:
    tokenizer = tokenizer_of(tiny(add_space_prefix=True))
    assert tokenizer.encode(b"a") == ids("<bos>", "a")
    assert tokenizer.decode(ids("▁a")) == b"a"


def test_missing_bos_token_is_refused() -> None:
    with pytest.raises(InvalidModel, match=r"tokenizer.ggml.bos_token_id"):
        tokenizer_of(tiny(bos_token_id=None)).encode(b"a")


@pytest.mark.parametrize(
    ("merges", "message"),
    [
        (None, "'tokenizer.ggml.merges' is missing"),
        (np.zeros(3, np.int32), "tokenizer.ggml.merges must be an array of strings"),
    ],
    ids=["missing", "numbers"],
)
def test_wrong_merges_are_refused_by_key(merges: Any, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        tokenizer_of(tiny(merges=merges))


def test_code_points_beyond_unicode_are_refused() -> None:
    with pytest.raises(EngineError, match="0x110000"):
        tokenizer_of(tiny()).encode(b"a \xf4\x90\x80\x80")


@pytest.mark.parametrize("word", ["a", "hello", " ", "\n"], ids=repr)
def test_a_word_of_a_quarter_of_a_megabyte_is_encoded(word: str) -> None:
    count = 2**18 // len(word)
    tokenizer = tokenizer_of(tiny())
    found = tokenizer.encode((word * count).encode(), add_special=False)
    assert tokenizer.decode(found).decode() == word * count
