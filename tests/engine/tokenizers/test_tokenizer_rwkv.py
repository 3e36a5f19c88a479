"""The "rwkv" tokenizer on a vocabulary written by hand: each rule and each key."""

from typing import Any

import pytest

from lockstep.engine.errors import InvalidModel
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.engine.tokenizers.rwkv import RwkvTokenizer, unescape
from tests.tokenizer_cases import (
    CONTROL,
    NORMAL,
    UNKNOWN,
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

TOKENS = r"""
<s> <unk> \x00 \t \n \r \\ \x20 a b c ab abcd bc abca \n\n \x5c\x6e \x4A \xe6\x97\xa5 日本 \xe6 \x97
\' < > | x y x\x79 \x78y <tool> y< <\x65> zz ▁ \x4 \x end\ é"""
TEXTS = TOKENS.split()
TYPES = {"<s>": CONTROL, r"<\x65>": CONTROL, "<unk>": UNKNOWN, "zz": UNUSED}
TYPES |= {"<tool>": USER_DEFINED, "y<": USER_DEFINED}
WORDS: list[Word] = [(text, 0, TYPES.get(text, NORMAL)) for text in TEXTS]


def tiny(**changes: Any) -> dict[str, Value]:
    return vocabulary("rwkv", WORDS, **({"unknown_token_id": 1} | changes))


def ids(*texts: str) -> list[int]:
    return [TEXTS.index(text) for text in texts]


# --- each rule ------------------------------------------------------------------------------------


CASES = (
    Case("the longest token wins", plain("abcd"), ids("abcd")),
    Case("the longest, not the fewest", plain("abcabca"), ids("abca", "bc", "a")),
    Case("it is the longest that is a token", plain("abcx"), ids("ab", "c", "x")),
    Case("tokens are unescaped", plain("\n \0"), ids(r"\n", r"\x20", r"\x00")),
    Case("runs are tokens", plain("\n\n\n"), ids(r"\n\n", r"\n")),
    Case("a backslash is a byte", plain(rb"\n"), ids(r"\x5c\x6e")),
    Case("any other escape is the character", plain("'"), ids(r"\'")),
    Case("capital digits count from '0'", plain("Q"), ids(r"\x4A")),
    Case("bytes need not be characters", plain(b"\xe6\x97\xe6"), ids(r"\xe6", r"\x97", r"\xe6")),
    Case("the later of two equal tokens is found", plain("xy"), ids(r"\x78y")),
    Case("a byte in no token is unknown", plain("aQq"), ids("a", r"\x4A", "<unk>")),
    Case("each of them", plain("qq"), ids("<unk>", "<unk>")),
    Case("spaces stay", plain(" ▁"), ids(r"\x20", "▁")),
    Case("nothing goes around a text", plain("a", add_special=True), ids("a")),
    Case("control tokens are found in any text", plain("<s>a"), ids("<s>", "a")),
    Case("user-defined tokens come before longer ones", plain("xy<"), ids("x", "y<")),
    Case("special texts are those of the file", plain(r"<\x65>", parse_special=True),
         ids(r"<\x65>")),
    Case("unused tokens are shown", decode(ids("zz", "▁", r"\xe6")), b"zz\xe2\x96\x81\xe6"),
)  # fmt: skip


def test_tokenizer_follows_every_rule() -> None:
    assert broken_rules(RwkvTokenizer, tiny(), CASES) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rb"\t\n\r\\\'\"\q", b"\t\n\r\\'\"q"),
        (rb"\x41\x0a\xff", b"\x41\x0a\xff"),
        (rb"\x4A\x4a", b"\x51\x4a"),  # 'A' - '0' is 17
        (rb"\xzz", bytes([(ord("z") - ord("a") + 10) * 17 & 0xFF])),
        (b"\\x\xc3\xa9", bytes([((0xC3 - 0x30) << 4) + 0xA9 - 0x30 & 0xFF])),
        (rb"\x4", b""),
        (rb"\x", b""),
        (b"a\\", b"a"),
        (rb"\\x41", b"\\x41"),
    ],
)
def test_escapes_are_read_as_llama_cpp_reads_them(text: bytes, expected: bytes) -> None:
    assert unescape(text) == expected


def test_a_byte_without_a_token_needs_an_unknown_token() -> None:
    with pytest.raises(InvalidModel, match=r"tokenizer.ggml.unknown_token_id"):
        tokenizer_of(tiny(unknown_token_id=None)).encode(b"q")


@pytest.mark.parametrize("text", [b"e", b"ae", b"en", b"aaened"], ids=str)
def test_incomplete_token_prefix_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidModel, match=r"tokenizer.ggml.tokens must have byte 0x65"):
        tokenizer_of(tiny()).encode(text)


def test_file_flags_matter_only_in_decoding() -> None:
    tokenizer = tokenizer_of(tiny(add_bos_token=True, bos_token_id=0, add_space_prefix=True))
    assert tokenizer.encode(b"a") == ids("a")
    shown = ids("<s>", r"\x20", "a")
    assert tokenizer.decode(shown, unparse_special=True) == b"<s> a"
    assert tokenizer.decode(shown, unparse_special=True, remove_special=True) == b" a"
    assert tokenizer.decode(ids(r"\x20", "a")) == b"a"


@pytest.mark.parametrize("word", [b"x", b"abc", b"q"], ids=str)
def test_a_word_of_a_megabyte_is_encoded(word: bytes) -> None:
    assert len(tokenizer_of(tiny()).encode(word * (2**20 // len(word)))) >= 2**20 // 2 // len(word)
