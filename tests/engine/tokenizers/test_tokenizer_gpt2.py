"""The "gpt2" tokenizer and the two tokenizers based on it: each rule and key, on a small
vocabulary."""

from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import EngineError, InvalidModel, Unsupported
from lockstep.engine.tokenizers.base import Tokenizer, tokenizer_of
from lockstep.engine.tokenizers.gpt2 import CHARACTER_OF_BYTE, Gpt2Tokenizer
from lockstep.engine.tokenizers.hybriddna import HybridDnaTokenizer
from lockstep.engine.tokenizers.whitespace import WhitespaceTokenizer
from tests.tokenizer_cases import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Case,
    Value,
    broken_rules,
    decode,
    plain,
    vocabulary,
)

MERGES = ("Ġ Ġ", "Ġ a", "b c", "a b", "bc d", "Ġa b", "z z", "Ġ w", "Ã ©", "Ġ 1", "1 2", "x !",
          "! !", "' s", "k l", "l m", "▁ a")  # fmt: skip
# tokens that no merge produces; tokens of NORMAL type are written in characters of bytes
WORDS = {"<s>": CONTROL, "</s>": CONTROL, "<unk>": UNKNOWN, "<tool>": USER_DEFINED, "klm": NORMAL,
         "[gone]": UNUSED, "<0x41>": BYTE, "<0xD1>": BYTE, "<0x84>": BYTE, "Ġx日": NORMAL,
         "▁": NORMAL}  # fmt: skip
MISSING = ("q", "Ġw")
LETTERS = [chr(character) for character in CHARACTER_OF_BYTE.values()]
JOINED = [merge.replace(" ", "") for merge in MERGES]
TEXTS = [text for text in dict.fromkeys([*WORDS, *LETTERS, *JOINED]) if text not in MISSING]


def tiny(pre: str | None = "gpt-2", **changes: Any) -> dict[str, Value]:
    """Return the metadata. changes: new values by the last part of their keys; None removes a
    key."""
    words = [(text, 0.0, WORDS.get(text, NORMAL)) for text in TEXTS]
    usual = {"scores": None, "merges": list(MERGES), "bos_token_id": 0, "eos_token_id": 1}
    return vocabulary("gpt2", words, **({"pre": pre} | usual | changes))


def ids(*texts: str) -> list[int]:
    return [TEXTS.index(text) for text in texts]


# --- each rule ------------------------------------------------------------------------------------


def encode(rule: str, text: str | bytes, expected: list[int], **changes: Any) -> Case:
    """Return a case that encodes without BOS and EOS, unless the changes have `add` or `parse`."""
    flags = {"add_special": changes.pop("add", False), "parse_special": changes.pop("parse", False)}
    return Case(rule, plain(text, **flags), expected, tiny(**changes))


def written(rule: str, tokens: list[int], expected: str | bytes, **changes: Any) -> Case:
    remove, unparse = changes.pop("remove", False), changes.pop("unparse", False)
    raw = expected.encode() if isinstance(expected, str) else expected
    ask = decode(tokens, remove_special=remove, unparse_special=unparse)
    return Case(rule, ask, raw, tiny(**changes))


CASES = (
    # merges
    encode("the lowest rank merges first", "abc", ids("a", "bc")),
    encode("what was merged merges on", "bcd", ids("bcd")),
    encode("equal ranks merge from the left", "zzz", ids("zz", "z")),
    encode("of equal merges the first counts", "abc", ids("a", "bc"), merges=["b c", "a b", "b c"]),
    encode("what is merged need not be a token", " w", ids("w")),
    encode("a token that no merge leads to is not found", "klm", ids("kl", "m")),
    encode("or it is, for some", "klm", ids("klm"), pre="llama-bpe"),
    # words
    encode("words do not merge", "x!!", ids("x", "!!")),
    encode("one space is the word's", "a    ab", ids("a", "ĠĠ", "Ġ", "Ġab")),
    encode("a pre-tokenizer is not replaced", " 12", ids("Ġ1", "2")),
    encode("no space goes before a text", "ab", ids("ab"), add_space_prefix=True),
    # bytes
    encode("words are spelled in bytes", "ф", ids("Ñ", "Ħ")),
    encode("what has no token is lost", "aqa", ids("a", "a")),
    encode("but for ASCII, which is kept", " w", ids("w")),
    encode("what is no UTF-8 is replaced", b"\xc3(", ids(*"ï¿½(")),
    encode("overlong forms are read", b"\xc1\xa1\xc1\xa2", ids("ab")),
    encode("a NUL is a byte", "a\0a", ids("a", "Ā", "a")),
    # special tokens
    encode("control texts are text", "<s>", ids("<", "s", ">")),
    encode("or tokens", "<s>x", ids("<s>", "x"), parse=True),
    encode("user-defined tokens are found", "<tool> a", ids("<tool>", "Ġa")),
    encode("no BOS unless a key says so", "x", ids("x"), add=True),
    encode("or the pre-tokenizer", "x", ids("<s>", "x"), add=True, pre="tekken"),
    encode("then the key", "x", ids("x"), add=True, pre="tekken", add_bos_token=False),
    encode(*("but not for gemma4", "", ids("<s>")), add=True, pre="gemma4", add_bos_token=False),
    encode("EOS is last", "x", ids("x", "</s>"), add=True, add_eos_token=True),
    # words that are not spelled in bytes
    encode("raw words have byte tokens", "ф", ids("<0xD1>", "<0x84>"), pre="sarvam-moe"),
    encode("raw words have ▁ for a space", " a", ids("▁a"), pre="sarvam-moe"),
    encode(
        *("newlines that are a token are it", "\n\n", ids("klm")),
        pre="gemma4",
        tokens=[text.replace("klm", "\n\n") for text in TEXTS],
    ),
    # decoding
    written("bytes are written", ids("Ġa", "Ċ", "Ã", "©"), " a\né"),
    written("a lone byte is written", ids("a", "Ã"), b"a\xc3"),
    written("user-defined tokens are as stored", ids("<tool>"), "<tool>"),
    written("byte tokens are their byte", ids("<0x41>"), "A"),
    written("unused tokens write nothing", ids("a", "[gone]"), "a"),
    written(
        "what is no character of a byte is named, with the whole token",
        ids("Ġx日"),
        " x[UNK_BYTE_0xe697a5Ġx日]",
    ),
    written("spaces before punctuation go", ids("a", "Ġ", "!", "Ġ", "'s"), "a!'s"),
    written("or stay", ids("a", "Ġ", "!"), "a !", pre="qwen2"),
    written(
        *("a BOS that was added goes", ids("<s>", "a"), "a"),
        unparse=True,
        remove=True,
        add_bos_token=True,
    ),
    written("▁ is a space for raw words", ids("▁a"), " a", pre="gemma4"),
)  # fmt: skip


def test_tokenizer_follows_every_rule() -> None:
    assert broken_rules(Gpt2Tokenizer, tiny(), CASES) == []


# --- keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"merges": None}, "the key 'tokenizer.ggml.merges' is missing"),
        ({"merges": np.zeros(3, np.float32)}, "tokenizer.ggml.merges must be an array of strings"),
        ({"tokens": None}, "the key 'tokenizer.ggml.tokens' is missing"),
        ({"token_type": np.ones(3, np.int32)}, "tokenizer.ggml.token_type must have one entry"),
        ({"tokens": ["a", "a"], "token_type": None}, "tokenizer.ggml.tokens must differ"),
        ({"tokens": ["\udcf4\udc90\udc80\udc80"], "token_type": None}, "tokenizer.ggml.tokens"),
    ],
)
def test_a_missing_or_absurd_key_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        tokenizer_of(tiny(**changes))


def test_an_unknown_pre_tokenizer_is_refused_by_key_and_value() -> None:
    with pytest.raises(Unsupported, match=r"tokenizer\.ggml\.pre .* 'gpt2'"):
        tokenizer_of(tiny(pre="gpt2"))


def test_missing_pre_tokenizer_shows_in_the_ids() -> None:
    tokenizer = tokenizer_of(tiny(pre=None))
    assert isinstance(tokenizer, Gpt2Tokenizer)
    assert tokenizer.pre.kind == "DEFAULT"


def test_kimi_k2_may_have_no_merges() -> None:
    tokenizer = tokenizer_of(tiny(pre="kimi-k2", merges=None))
    assert tokenizer.encode(b"ab") == ids("a", "b")


@pytest.mark.parametrize("text", [b"\xf4\x90\x80\x80", b"a\xf7\xbf\xbf\xbf"])
def test_a_code_point_beyond_unicode_is_refused(text: bytes) -> None:
    with pytest.raises(EngineError, match=r"U\+10FFFF"):
        tokenizer_of(tiny()).encode(text)


def test_spaces_that_would_have_to_merge_are_refused() -> None:
    tokenizer = tokenizer_of(tiny(pre="whitespace"))
    assert tokenizer.encode(b"a b") == ids("a", "b")  # a single space is a token, or is lost
    with pytest.raises(EngineError, match="WHITESPACE"):
        tokenizer.encode(b"a  b")


def test_merges_that_can_never_apply_are_harmless() -> None:
    merges = [
        "",
        " ",
        "a",
        " a",
        "a ",
        "a  b",
        "a b c",
        "\udc80 a",
        "b c\0d",
        "\udced\udcb2\udc80 a",
    ]
    assert tokenizer_of(tiny(merges=merges)).encode(b"abc") == ids("a", "bc")


# --- DNA, white space and case --------------------------------------------------------------

DNA = ("<dna>", "</dna>", "<oov>", "ACGTAC\ue000", "CAAAAA\ue000")
OPEN, CLOSE, OOV, WHOLE, FILLED = range(len(TEXTS), len(TEXTS) + 5)
METADATA = tiny(model="hybriddna", tokens=[*TEXTS, *DNA], token_type=None)
MIXED = b"ab<dna>acgtacNNNNNNC</dna>ab<dna>c"


def test_dna_is_split_into_6_mers_and_the_last_is_padded() -> None:
    expected = [*ids("ab"), OPEN, WHOLE, OOV, FILLED, CLOSE, *ids("ab"), OPEN, FILLED]
    tokenizer: Tokenizer = tokenizer_of(METADATA)
    assert isinstance(tokenizer, HybridDnaTokenizer)
    assert tokenizer.encode(MIXED) == expected
    assert Gpt2Tokenizer(METADATA).encode(MIXED) != expected


def test_dna_marker_is_not_shown() -> None:
    assert HybridDnaTokenizer(METADATA).piece(WHOLE, special=False) == b"ACGTAC"
    assert Gpt2Tokenizer(METADATA).piece(WHOLE, special=False) != b"ACGTAC"


def test_dna_without_tokens_is_text() -> None:
    metadata = tiny(model="hybriddna")
    assert HybridDnaTokenizer(metadata).encode(MIXED) == Gpt2Tokenizer(metadata).encode(MIXED)


def test_whitespace_tokenizer_drops_white_space_and_lowers_case() -> None:
    metadata, text = tiny(model="whitespace"), "\u3000AB \n ab\t".encode()
    assert isinstance(tokenizer_of(metadata), WhitespaceTokenizer)
    assert WhitespaceTokenizer(metadata).encode(text) == ids("ab", "ab")
    assert Gpt2Tokenizer(metadata).encode(text) != ids("ab", "ab")


def test_capitals_stay_unless_the_normalizer_key_lowers_them() -> None:
    metadata = tiny(model="whitespace", pre="whitespace")
    assert WhitespaceTokenizer(metadata).encode(b"a Aab") == ids("a", "A", "ab")
    lowered = tiny(model="whitespace", pre="whitespace", **{"normalizer.lowercase": True})
    assert WhitespaceTokenizer(lowered).encode(b"a Aab") == ids("a", "a", "ab")
