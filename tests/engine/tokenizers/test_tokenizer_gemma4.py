"""The "gemma4" tokenizer on a vocabulary written by hand: each rule, and who gets it wrong."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import EngineError, InvalidModel
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.engine.tokenizers.gemma4 import Gemma4Tokenizer
from lockstep.engine.tokenizers.merging import NEVER, Merging
from lockstep.engine.tokenizers.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from lockstep.engine.tokenizers.splitting import TextSplitter
from lockstep.engine.tokenizers.tables import VALUE
from tests.tokenizer_cases import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Case,
    Value,
    Word,
    byte_words,
    decode,
    plain,
    vocabulary,
)
from tests.vocabularies import known_cases, vocabulary_file

WORDS: list[Word] = [
    *((text, 0, CONTROL) for text in ("<pad>", "<eos>", "<bos>")),
    ("<unk>", 0, UNKNOWN),
    *(word for word in byte_words() if word[0] != "<0x71>"),  # q has none
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
    """Ids of texts; a number stands for the token of that byte."""
    return [TEXTS.index(f"<0x{text:02X}>" if isinstance(text, int) else text) for text in texts]


# --- each rule, and a tokenizer that breaks it ----------------------------------------------------


class RanksIgnored(Gemma4Tokenizer):
    """Merges from the left, as if all merges were of one rank."""

    @cached_property
    def merging(self) -> Merging:
        right = super().merging
        rows = right.pairs.rows.copy()
        rows[:, VALUE] = 0
        return right._replace(pairs=right.pairs._replace(rows=rows))


class LastOfEqualMerges(Gemma4Tokenizer):
    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata)
        self.merges = list(dict.fromkeys(self.merges[::-1]))[::-1]


class MergesToTokensOnly(Gemma4Tokenizer):
    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata)
        known = self.vocabulary.ids
        self.merges = [merge for merge in self.merges if merge.replace(b" ", b"") in known]


class SplitsWords(Gemma4Tokenizer):
    """The words of the default pre-tokenizer in place of lines."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata)
        self.splitter = TextSplitter(PRE_TOKENIZERS["default"].expressions)


class WholeText(Gemma4Tokenizer):
    """No lines either: newlines merge with what is beside them."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata)
        self.splitter = TextSplitter([r"[\s\S]+"])


class SpacesNotEscaped(Gemma4Tokenizer):
    def segment(self, text: bytes) -> list[int]:
        parts = text.split(b" ")
        return [token for part in parts for token in super(SpacesNotEscaped, self).segment(part)]


class SpacePrefixed(Gemma4Tokenizer):
    def segment(self, text: bytes) -> list[int]:
        return list(super().segment(b" " + text))


class NewlinesMerged(Gemma4Tokenizer):
    def kept_whole(self) -> Any:
        return NEVER


class UnknownInsteadOfBytes(Gemma4Tokenizer):
    def segment(self, text: bytes) -> list[int]:
        return [3 if 4 <= token < 259 else token for token in super().segment(text)]


class InvalidBytesKept(Gemma4Tokenizer):
    def segment(self, text: bytes) -> list[int]:
        if text == text.decode("utf-8", "ignore").encode():
            return list(super().segment(text))
        return [self.vocabulary.ids[b"<0x%02X>" % byte] for byte in text]


class MergesMissing(Gemma4Tokenizer):
    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata)
        self.merges = []


class BosByFlag(Gemma4Tokenizer):
    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata)
        self.vocabulary = replace(self.vocabulary, add_bos=False)


class BosDoubled(Gemma4Tokenizer):
    def around(self) -> tuple[list[int], list[int]]:
        before, after = super().around()
        return before * 2, after


class SpacesNotCleaned(Gemma4Tokenizer):
    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata)
        self.vocabulary = replace(self.vocabulary, clean_spaces=False)


class PartialCharactersDropped(Gemma4Tokenizer):
    def decode(self, ids: Any, **flags: bool) -> bytes:
        return super().decode(ids, **flags).decode("utf-8", "ignore").encode()


class PreTokenizerOfTheFile(Gemma4Tokenizer):
    def choose(self, metadata: Mapping[str, Any]) -> PreTokenizer:
        return PRE_TOKENIZERS["default"]


class SpecialsParsedAlways(Gemma4Tokenizer):
    def partition(self, text: bytes, *, parse_special: bool) -> list[int | bytes]:
        return super().partition(text, parse_special=True)


class OldEndHidden(Gemma4Tokenizer):
    def render(self, token: int) -> bytes:
        return b"" if token == TEXTS.index("</s>") else super().render(token)


CASES = (
    Case("the lowest rank is merged first", plain("abcd"), ids("a", "bc", "d"), RanksIgnored),
    Case("equal ranks from the left", plain("▁▁▁▁▁"), ids("▁▁", "▁▁▁"), RanksIgnored),
    Case("of two equal merges the first counts", plain("▁ab"), ids("▁", "ab"), LastOfEqualMerges),
    Case("merges go through what is no token", plain("hello"), ids("hello"), MergesToTokensOnly),
    Case("and may end there, to be spelled in bytes", plain("ee"), ids(0x65, 0x65),
         MergesToTokensOnly),
    Case("a line is merged as a whole", plain("a a"), ids("a", "▁a"), SplitsWords),
    Case("newlines are apart", plain("a\nb"), ids("a", "\n", "b"), WholeText),
    Case("a run of them that is a token is one", plain("\n\n\n\n"), ids("\n\n\n\n"),
         NewlinesMerged),
    Case("any other run is merged", plain("\n\n\n"), ids("\n\n", "\n"), MergesMissing),
    Case("spaces are tokens", plain("   a"), ids("▁▁", "▁a"), SpacesNotEscaped),
    Case("none is put before", plain("a"), ids("a"), SpacePrefixed),
    Case("what is no token is spelled in bytes", plain("é"), ids(0xC3, 0xA9),
         UnknownInsteadOfBytes),
    Case("bytes without a token are lost", plain("aqb"), ids("a", "b"), SpacePrefixed),
    Case("bytes that are no UTF-8 are U+FFFD", plain(b"a\xffb"), ids("a", "\ufffd", "b"),
         InvalidBytesKept),
    Case("overlong forms become short", plain(b"a\xc0\xaf"), ids("a", "/"), InvalidBytesKept),
    Case("BOS comes whatever the file says", plain("a", add_special=True), ids("<bos>", "a"),
         BosByFlag),
    Case("and once", plain("", add_special=True), ids("<bos>"), BosDoubled),
    Case("the file's pre-tokenizer is not asked", plain("a a"), ids("a", "▁a"),
         PreTokenizerOfTheFile),
    Case("special texts are only text", plain("<eos>", parse_special=False),
         ids(0x3C, "e", "o", 0x73, 0x3E), SpecialsParsedAlways),
    Case("decoding drops spaces", decode(ids("a", "▁", ",", "▁", "!")), b"a,!", SpacesNotCleaned),
    Case("a lone byte is written", decode(ids("a", 0xE6)), b"a\xe6", PartialCharactersDropped),
    Case("the old end is a normal token", decode(ids("</s>")), b"</s>", OldEndHidden),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_rule_holds_and_the_wrong_tokenizer_breaks_it(case: Case) -> None:
    expected = list(case.expected)
    assert list(case.ask(Gemma4Tokenizer(tiny(add_bos_token=False)))) == expected
    assert list(case.ask(case.wrong(tiny(add_bos_token=False)))) != expected


def test_the_pre_tokenizer_of_the_file_is_not_even_read() -> None:
    assert tokenizer_of(tiny(pre="no such thing")).encode(b"a a") == ids("<bos>", "a", "▁a")


def test_a_space_prefix_is_for_decoding_only() -> None:
    tokenizer = tokenizer_of(tiny(add_space_prefix=True))
    assert tokenizer.encode(b"a") == ids("<bos>", "a")
    assert tokenizer.decode(ids("▁a")) == b"a"


def test_a_bos_that_does_not_exist_is_refused() -> None:
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


# --- the real vocabulary --------------------------------------------------------------------------

SENTENCEPIECE = (
    ("Derinkuyu is an underground city.", [17361, 961, 78658, 563, 614, 26407, 3207, 236761]),
    (" hello", [29104]),
    ("hello", [23391]),
    ("  hello", [138, 23391]),
    ("   hello", [139, 23391]),
    ("回転行列", [57364, 167089]),
    (" " * 40 + "hello", [167, 145, 23391]),
)


@pytest.fixture(scope="module")
def gemma() -> Any:
    with GgufFile.open(vocabulary_file("gemma-4")) as file:
        return tokenizer_of(file.metadata)


def test_llama_cpp_s_own_cases_hold(gemma: Gemma4Tokenizer) -> None:
    for text, expected in known_cases("gemma-4"):
        assert gemma.encode(text, add_special=False) == expected


@pytest.mark.parametrize(("text", "expected"), SENTENCEPIECE, ids=lambda value: str(value)[:20])
def test_ids_are_those_of_the_original(
    gemma: Gemma4Tokenizer, text: str, expected: list[int]
) -> None:
    """As gemma's own notebook gave them to the author of a chat program in 1925 lines."""
    assert gemma.encode(text.encode(), add_special=False) == expected
    assert gemma.decode(expected) == text.encode()
