"""The "bert" tokenizer on a vocabulary written by hand: each rule and each key."""

from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import EngineError, InvalidModel
from lockstep.engine.tokenizers import bert
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.engine.tokenizers.bert import BertTokenizer
from tests.tokenizer_cases import (
    BYTE,
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    Case,
    Value,
    Word,
    broken_rules,
    decode,
    plain,
    vocabulary,
)

BEGINNINGS = """\
a b c e h i ' , . ! + ~ ® 日 本 한 ᄒ Q ß µ he hello hel caf s don t é HE"""
CONTINUATIONS = "a b c d e ll o llo s 日 本 é Q ß ®"
WORDS: tuple[Word, ...] = (
    *((text, 0, CONTROL) for text in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")),
    *((f"▁{text}", 0, NORMAL) for text in BEGINNINGS.split()),
    *((text, 0, NORMAL) for text in CONTINUATIONS.split()),
    ("<tool>", 0, USER_DEFINED),
    ("▁zz", 0, UNUSED),
)
TEXTS = [text for text, _, _ in WORDS]
ROLES = {
    f"{role}_token_id": i
    for i, role in enumerate(("padding", "unknown", "bos", "seperator", "mask"))
}


def tiny(**changes: Any) -> dict[str, Value]:
    return vocabulary("bert", WORDS, **(ROLES | changes))


def ids(*texts: str) -> list[int]:
    return [TEXTS.index(text) for text in texts]


# --- each rule ------------------------------------------------------------------------------------


CASES = (
    Case("letters become small", plain("HELLO"), ids("▁hello")),
    Case("one code point is the small letter", plain("İ"), ids("▁i")),
    Case("accents are stripped", plain("Café"), ids("▁caf", "e")),
    Case("combining marks go", plain("a\u0301\u0323b"), ids("▁a", "b")),
    Case("a Korean syllable keeps its first consonant", plain("한"), ids("▁ᄒ")),
    Case("Chinese characters are words", plain("日本"), ids("▁日", "▁本")),
    Case("punctuation is a word", plain("a,b"), ids("▁a", "▁,", "▁b")),
    Case("so is an ASCII symbol", plain("a+b~"), ids("▁a", "▁+", "▁b", "▁~")),
    Case("no other symbol is", plain("a®"), ids("▁a", "®")),
    Case("a word begins with a space", plain("llo"), ids("[UNK]")),
    Case("a word that goes on has none", plain("heb"), ids("▁he", "b")),
    Case("a word is unknown as a whole", plain("hellox"), ids("[UNK]")),
    Case("the longest token wins", plain("hello"), ids("▁hello")),
    Case("greedy means greedy", plain("hells"), ids("[UNK]")),
    Case("control characters vanish", plain("he\0l\u200blo\x7f"), ids("▁hello")),
    Case("private use is a control too", plain("he\ue000llo"), ids("▁hello")),
    Case("bytes that are no UTF-8 vanish", plain(b"he\xffllo"), ids("▁hello")),
    Case("all white space ends words", plain("a\u3000b\x85c"), ids(*["▁a", "▁b", "▁c"])),
    Case("CLS comes once", plain("a", add_special=True), ids("[CLS]", "▁a", "[SEP]")),
    Case("SEP comes always", plain("", add_special=True), ids("[CLS]", "[SEP]")),
    Case("special texts are only text", plain("[SEP]"), ids("[UNK]", "[UNK]", "[UNK]")),
    Case("an unused token is found", plain("zz"), ids("▁zz")),
    Case("no space before punctuation", decode(ids("▁hello", "▁,", "▁he", "▁'", "▁s")),
         b" hello, he's"),
    Case("the first space stays", decode(ids("[CLS]", "▁a")), b" a"),
    Case("SEP is not removed",
         decode(ids("[CLS]", "▁a", "[SEP]"), remove_special=True, unparse_special=True),
         b" a[SEP]"),
)  # fmt: skip


def test_tokenizer_follows_every_rule() -> None:
    assert broken_rules(BertTokenizer, tiny(), CASES) == []


# --- keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ids("▁he", "e")),
        ({"normalizer__lowercase": False}, ids("▁HE", "é")),
        ({"normalizer__lowercase": False, "normalizer__strip_accents": True}, ids("▁HE", "e")),
        ({"normalizer__strip_accents": False}, ids("▁he", "é")),
    ],
    ids=str,
)
def test_accents_are_stripped_with_lower_case_unless_a_key_says_otherwise(
    changes: dict[str, bool], expected: list[int]
) -> None:
    text = "HEé" if changes.get("normalizer__lowercase") is False else "HEÉ"
    assert tokenizer_of(tiny(**changes)).encode(text.encode(), add_special=False) == expected


def test_file_flags_change_nothing_around_a_text() -> None:
    flags = {"add_bos_token": False, "add_sep_token": False, "add_eos_token": True}
    tokenizer = tokenizer_of(tiny(**flags))
    assert tokenizer.encode(b"a") == ids("[CLS]", "▁a", "[SEP]")


def test_roles_beyond_the_vocabulary_are_refused_if_needed() -> None:
    tokenizer = tokenizer_of(tiny(bos_token_id=None, unknown_token_id=None))
    assert tokenizer.encode(b"a", add_special=False) == ids("▁a")
    with pytest.raises(InvalidModel, match=r"tokenizer.ggml.bos_token_id"):
        tokenizer.encode(b"a")
    with pytest.raises(InvalidModel, match=r"tokenizer.ggml.unknown_token_id"):
        tokenizer.encode(b"x", add_special=False)


def test_byte_tokens_are_refused_by_key() -> None:
    types = tiny()["tokenizer.ggml.token_type"].data.copy()
    types[5] = BYTE
    with pytest.raises(InvalidModel, match=r"tokenizer.ggml.token_type .*token 5"):
        tokenizer_of(tiny(token_type=types))


def test_code_points_beyond_unicode_are_refused() -> None:
    with pytest.raises(EngineError, match="0x110000"):
        tokenizer_of(tiny()).encode(b"a \xf4\x90\x80\x80")


def test_characters_newer_than_llama_cpp_are_not_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unassigned = np.full(0x110000, ord("U"), np.uint8)
    monkeypatch.setattr(bert, "categories", lambda: unassigned)
    assert (bert.lower(ord("A")), bert.bare(ord("é"))) == (ord("A"), ord("é"))


@pytest.mark.parametrize("text", [b"x" * 2**20, b"a" * 2**20], ids=["unknown", "known"])
def test_a_word_of_a_megabyte_is_encoded(text: bytes) -> None:
    expected = ids("[UNK]") if text[:1] == b"x" else [*ids("▁a"), *ids("a") * (2**20 - 1)]
    assert tokenizer_of(tiny()).encode(text, add_special=False) == expected
