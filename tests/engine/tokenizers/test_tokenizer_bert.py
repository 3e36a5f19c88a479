"""The "bert" tokenizer on a vocabulary written by hand: each rule, and who gets it wrong."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import EngineError, InvalidModel
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.tokenizers import bert
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.engine.tokenizers.bert import ENDS, GROWS, BertTokenizer
from tests.tokenizer_cases import (
    BYTE,
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    Case,
    Value,
    Word,
    decode,
    plain,
    vocabulary,
)
from tests.vocabularies import known_cases, vocabulary_file

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


# --- each rule, and a tokenizer that breaks it ----------------------------------------------------


class AccentsNotStripped(BertTokenizer):
    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata)
        self.strip_accents = False


class LowerCasingMissing(BertTokenizer):
    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata)
        self.lowercase = False


class DecomposesWhole(BertTokenizer):
    """What NFD is elsewhere: all of the decomposition, and not its first code point."""

    def words(self, text: bytes) -> Iterator[bytes]:
        import unicodedata

        yield from super().words(unicodedata.normalize("NFD", text.decode()).encode())


class ChineseNotSplit(BertTokenizer):
    def treat(self, code: int) -> tuple[int, bytes]:
        return (GROWS if bert.is_chinese(code) else super().treat(code)[0]), super().treat(code)[1]


class PunctuationNotSplit(BertTokenizer):
    def treat(self, code: int) -> tuple[int, bytes]:
        does, written = super().treat(code)
        return (does if does == ENDS else GROWS), written


class SymbolsSplitEverywhere(BertTokenizer):
    def treat(self, code: int) -> tuple[int, bytes]:
        symbol = bert.categories()[code] == ord("S")
        return (bert.STANDS_ALONE, chr(code).encode()) if symbol else super().treat(code)


class PhantomSpaceMissing(BertTokenizer):
    def longest_first(self, word: bytes) -> list[int]:
        return super().longest_first(word.removeprefix("▁".encode()))


class UnknownPieceByPiece(BertTokenizer):
    def longest_first(self, word: bytes) -> list[int]:
        found: list[int] = []
        at = 0
        while at < len(word):
            size, token = self.matcher.longest(word, at) or (1, ids("[UNK]")[0])
            found.append(token)
            at += size
        return found


class GreedyShortest(BertTokenizer):
    def longest_first(self, word: bytes) -> list[int]:
        found: list[int] = []
        at = 0
        while at < len(word):
            size, token = next(self.matcher.matches(word, at), (0, 0))
            if not size:
                return ids("[UNK]")
            found.append(token)
            at += size
        return found


class ControlsEndWords(BertTokenizer):
    def treat(self, code: int) -> tuple[int, bytes]:
        does, written = super().treat(code)
        return (does if written else ENDS), written


class ReplacementKept(BertTokenizer):
    def treat(self, code: int) -> tuple[int, bytes]:
        return super().treat(ord("q") if code == 0xFFFD else code)


class OnlyAsciiWhiteSpace(BertTokenizer):
    def treat(self, code: int) -> tuple[int, bytes]:
        does, written = super().treat(code)
        return (GROWS if code > 0x7F and does == ENDS else does), written


class BosDoubled(BertTokenizer):
    def around(self) -> tuple[list[int], list[int]]:
        before, after = super().around()
        return before * 2, after


class SeparatorByFlag(BertTokenizer):
    def around(self) -> tuple[list[int], list[int]]:
        before, after = super().around()
        return before, after if self.vocabulary.add_eos else []


class SpacesNotCleaned(BertTokenizer):
    def decode(self, ids: Any, **flags: bool) -> bytes:
        return b"".join(self.piece(token, special=False) for token in ids)


class FirstSpaceStripped(BertTokenizer):
    def decode(self, ids: Any, **flags: bool) -> bytes:
        return super().decode(ids, **flags).removeprefix(b" ")


class SeparatorRemoved(BertTokenizer):
    def decode(self, ids: Any, **flags: bool) -> bytes:
        return super().decode(ids, **flags).removesuffix(b"[SEP]")


class SpecialsParsedAlways(BertTokenizer):
    def partition(self, text: bytes, *, parse_special: bool) -> list[int | bytes]:
        return super().partition(text, parse_special=True)


class UnusedIgnored(BertTokenizer):
    def segment(self, text: bytes) -> list[int]:
        return [token for token in super().segment(text) if token not in ids("▁zz")]


CASES = (
    Case("letters become small", plain("HELLO"), ids("▁hello"), LowerCasingMissing),
    Case("one code point is the small letter", plain("İ"), ids("▁i"), LowerCasingMissing),
    Case("accents are stripped", plain("Café"), ids("▁caf", "e"), AccentsNotStripped),
    Case("combining marks go", plain("a\u0301\u0323b"), ids("▁a", "b"), AccentsNotStripped),
    Case("a Korean syllable keeps its first consonant", plain("한"), ids("▁ᄒ"), DecomposesWhole),
    Case("Chinese characters are words", plain("日本"), ids("▁日", "▁本"), ChineseNotSplit),
    Case("punctuation is a word", plain("a,b"), ids("▁a", "▁,", "▁b"), PunctuationNotSplit),
    Case("so is an ASCII symbol", plain("a+b~"), ids("▁a", "▁+", "▁b", "▁~"), PunctuationNotSplit),
    Case("no other symbol is", plain("a®"), ids("▁a", "®"), SymbolsSplitEverywhere),
    Case("a word begins with a space", plain("llo"), ids("[UNK]"), PhantomSpaceMissing),
    Case("a word that goes on has none", plain("heb"), ids("▁he", "b"), PhantomSpaceMissing),
    Case("a word is unknown as a whole", plain("hellox"), ids("[UNK]"), UnknownPieceByPiece),
    Case("the longest token wins", plain("hello"), ids("▁hello"), GreedyShortest),
    Case("greedy means greedy", plain("hells"), ids("[UNK]"), GreedyShortest),
    Case("control characters vanish", plain("he\0l\u200blo\x7f"), ids("▁hello"), ControlsEndWords),
    Case("private use is a control too", plain("he\ue000llo"), ids("▁hello"), ControlsEndWords),
    Case("bytes that are no UTF-8 vanish", plain(b"he\xffllo"), ids("▁hello"), ReplacementKept),
    Case("all white space ends words", plain("a\u3000b\x85c"), ids(*["▁a", "▁b", "▁c"]),
         OnlyAsciiWhiteSpace),
    Case("CLS comes once", plain("a", add_special=True), ids("[CLS]", "▁a", "[SEP]"), BosDoubled),
    Case("SEP comes always", plain("", add_special=True), ids("[CLS]", "[SEP]"), SeparatorByFlag),
    Case("special texts are only text", plain("[SEP]"), ids("[UNK]", "[UNK]", "[UNK]"),
         SpecialsParsedAlways),
    Case("an unused token is found", plain("zz"), ids("▁zz"), UnusedIgnored),
    Case("no space before punctuation", decode(ids("▁hello", "▁,", "▁he", "▁'", "▁s")),
         b" hello, he's", SpacesNotCleaned),
    Case("the first space stays", decode(ids("[CLS]", "▁a")), b" a", FirstSpaceStripped),
    Case("SEP is not removed",
         decode(ids("[CLS]", "▁a", "[SEP]"), remove_special=True, unparse_special=True),
         b" a[SEP]", SeparatorRemoved),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_rule_holds_and_the_wrong_tokenizer_breaks_it(case: Case) -> None:
    assert list(case.ask(BertTokenizer(tiny()))) == list(case.expected)
    assert list(case.ask(case.wrong(tiny()))) != list(case.expected)


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
def test_accents_are_stripped_where_letters_are_made_small_unless_a_key_says_otherwise(
    changes: dict[str, bool], expected: list[int]
) -> None:
    text = "HEé" if changes.get("normalizer__lowercase") is False else "HEÉ"
    assert tokenizer_of(tiny(**changes)).encode(text.encode(), add_special=False) == expected


def test_flags_of_the_file_change_nothing_around_a_text() -> None:
    flags = {"add_bos_token": False, "add_sep_token": False, "add_eos_token": True}
    tokenizer = tokenizer_of(tiny(**flags))
    assert tokenizer.encode(b"a") == ids("[CLS]", "▁a", "[SEP]")


def test_roles_beyond_the_vocabulary_are_none_and_refused_where_they_are_needed() -> None:
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


def test_characters_newer_than_llama_cpp_know_no_small_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unassigned = np.full(0x110000, ord("U"), np.uint8)
    monkeypatch.setattr(bert, "categories", lambda: unassigned)
    assert (bert.lower(ord("A")), bert.bare(ord("é"))) == (ord("A"), ord("é"))


@pytest.mark.parametrize("text", [b"x" * 2**20, b"a" * 2**20], ids=["unknown", "known"])
def test_a_word_of_a_megabyte_is_encoded(text: bytes) -> None:
    expected = ids("[UNK]") if text[:1] == b"x" else [*ids("▁a"), *ids("a") * (2**20 - 1)]
    assert tokenizer_of(tiny()).encode(text, add_special=False) == expected


# --- a real vocabulary --------------------------------------------------------------------------


def test_llama_cpp_s_own_cases_hold() -> None:
    with GgufFile.open(vocabulary_file("bert-bge")) as file:
        tokenizer = tokenizer_of(file.metadata)
    for text, expected in known_cases("bert-bge"):
        assert tokenizer.encode(text, add_special=False) == expected
