"""The "gpt2" tokenizer on a vocabulary written by hand: each rule, and who gets it wrong."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import EngineError, InvalidModel, Unsupported
from lockstep.engine.tokenizers.base import Tokenizer, tokenizer_of
from lockstep.engine.tokenizers.gpt2 import CHARACTER_OF_BYTE, Gpt2Tokenizer
from lockstep.engine.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from lockstep.engine.tokenizers.vocabulary import Metadata
from tests.engine.tokenizers.test_tokenizer_llama import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Value,
)

MERGES = ("Ġ Ġ", "Ġ a", "b c", "a b", "bc d", "Ġa b", "z z", "Ġ w", "Ã ©", "Ġ 1", "1 2", "x !",
          "! !", "' s", "k l", "l m", "▁ a")  # fmt: skip
# tokens that no merge leads to; what is of NORMAL type is written as characters of bytes
WORDS = {"<s>": CONTROL, "</s>": CONTROL, "<unk>": UNKNOWN, "<tool>": USER_DEFINED, "klm": NORMAL,
         "[gone]": UNUSED, "<0x41>": BYTE, "<0xD1>": BYTE, "<0x84>": BYTE, "Ġx日": NORMAL,
         "▁": NORMAL}  # fmt: skip
MISSING = ("q", "Ġw")
LETTERS = [chr(character) for character in CHARACTER_OF_BYTE.values()]
JOINED = [merge.replace(" ", "") for merge in MERGES]
TEXTS = [text for text in dict.fromkeys([*WORDS, *LETTERS, *JOINED]) if text not in MISSING]


def tiny(pre: str | None = "gpt-2", **changes: Any) -> dict[str, Value]:
    """The metadata; a change is under the last part of its key, and None removes that key."""
    metadata = {
        "model": "gpt2",
        "pre": pre,
        "tokens": TEXTS,
        "token_type": np.array([WORDS.get(text, NORMAL) for text in TEXTS], np.int32),
        "merges": list(MERGES),
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    values = {**metadata, **changes}
    return {f"tokenizer.ggml.{k}": Value(v) for k, v in values.items() if v is not None}


def ids(*texts: str) -> list[int]:
    return [TEXTS.index(text) for text in texts]


# --- each rule, and a tokenizer that breaks it ----------------------------------------------------


class HighestRankFirst(Gpt2Tokenizer):
    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.merges = self.merges[::-1]


class MergesCharactersOnly(Gpt2Tokenizer):
    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.merges = [merge for merge in self.merges if len(merge.decode()) == 3]


class TheLastOfEqualMergesCounts(Gpt2Tokenizer):
    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.merges = list(dict.fromkeys(self.merges[::-1]))[::-1]


class MergesOnlyIntoTokens(Gpt2Tokenizer):
    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        known = self.vocabulary.ids
        self.merges = [merge for merge in self.merges if merge.replace(b" ", b"") in known]


class FromTheRight(Gpt2Tokenizer):
    def segment(self, text: bytes) -> Iterable[int]:
        """Of one letter, which is the same from both ends."""
        ids = list(super().segment(text))
        return ids[::-1] if len(set(text)) == 1 else ids


class NeverAWholeWord(Gpt2Tokenizer):
    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.pre = replace(self.pre, ignore_merges=False)


class AlwaysAWholeWord(NeverAWholeWord):
    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.pre = replace(self.pre, ignore_merges=True)


class UnknownForWhatHasNoToken(Gpt2Tokenizer):
    def byte_token(self, byte: int) -> int:
        return 2


class SpellsAnyByte(Gpt2Tokenizer):
    """Goes back to the byte that a character stands for."""

    def merged(self, words: Sequence[str]) -> list[list[int]]:
        known = self.vocabulary.ids
        letters = {byte: chr(CHARACTER_OF_BYTE[byte]).encode() for byte in range(256)}
        return [[known[letters[b]] for b in word.encode() if letters[b] in known] for word in words]


class MergesAcrossWords(Gpt2Tokenizer):
    def segment(self, text: bytes) -> Iterable[int]:
        return self.merged([text.decode()])[0]


class DefaultForAny(Gpt2Tokenizer):
    def choose(self, metadata: Metadata) -> Any:
        return PRE_TOKENIZERS["default"]


class NotInBytes(Gpt2Tokenizer):
    """Also where runs of newlines are words like others."""

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.pre = replace(self.pre, kind="SARVAM_MOE")


class StopsAtNul(Gpt2Tokenizer):
    def segment(self, text: bytes) -> Iterable[int]:
        return super().segment(text.split(b"\0")[0])


class DropsTheFirstSpace(Gpt2Tokenizer):
    def segment(self, text: bytes) -> Iterable[int]:
        return super().segment(text.removeprefix(b" "))


class ReadsBytesThatAreNoUtf8(Gpt2Tokenizer):
    def segment(self, text: bytes) -> Iterable[int]:
        return [self.vocabulary.ids[chr(CHARACTER_OF_BYTE[byte]).encode()] for byte in text]


class PrefixesASpace(Gpt2Tokenizer):
    def segment(self, text: bytes) -> Iterable[int]:
        return super().segment(b" " + text)


class ParsesSpecialsAlways(Gpt2Tokenizer):
    def partition(self, text: bytes, *, parse_special: bool) -> list[int | bytes]:
        return super().partition(text, parse_special=True)


class ParsesSpecialsNever(Gpt2Tokenizer):
    def partition(self, text: bytes, *, parse_special: bool) -> list[int | bytes]:
        return [text]


class BosAlways(Gpt2Tokenizer):
    def around(self) -> tuple[list[int], list[int]]:
        return [0], []


class BosNever(Gpt2Tokenizer):
    def around(self) -> tuple[list[int], list[int]]:
        return [], []


class ShowsTextsAsStored(Gpt2Tokenizer):
    def render(self, token: int) -> bytes:
        return self.vocabulary.texts[token]


class QuotesPieces(Gpt2Tokenizer):
    def render(self, token: int) -> bytes:
        return json.dumps(super().render(token).decode("latin-1")).encode()


class DropsPartialCharacters(Gpt2Tokenizer):
    def decode(self, ids: Any, **flags: bool) -> bytes:
        return super().decode(ids, **flags).decode("utf-8", "ignore").encode()


class KeepsSpaces(Gpt2Tokenizer):
    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.vocabulary = replace(self.vocabulary, clean_spaces=False)


class AlwaysCleans(Gpt2Tokenizer):
    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.vocabulary = replace(self.vocabulary, clean_spaces=True)


class BelievesTheKey(Gpt2Tokenizer):
    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.vocabulary = replace(self.vocabulary, add_bos=False)


class SkipsWhatIsNoCharacterOfAByte(Gpt2Tokenizer):
    def render(self, token: int) -> bytes:
        return b"" if b"UNK_BYTE" in super().render(token) else super().render(token)


@dataclass(frozen=True)
class Case:
    rule: str
    ask: Callable[[Tokenizer], Any]
    expected: Any
    wrong: type[Gpt2Tokenizer]
    metadata: Metadata


def encode(
    rule: str, text: str | bytes, expected: list[int], wrong: type[Gpt2Tokenizer], **changes: Any
) -> Case:
    """Without BOS and EOS, unless `add` or `parse` are among the changes."""
    flags = {"add_special": changes.pop("add", False), "parse_special": changes.pop("parse", False)}
    raw = text.encode() if isinstance(text, str) else text
    return Case(rule, lambda t: t.encode(raw, **flags), expected, wrong, tiny(**changes))


def decode(
    rule: str, tokens: list[int], expected: str | bytes, wrong: type[Gpt2Tokenizer], **changes: Any
) -> Case:
    remove, unparse = changes.pop("remove", False), changes.pop("unparse", False)
    raw = expected.encode() if isinstance(expected, str) else expected
    return Case(
        rule,
        lambda t: t.decode(tokens, remove_special=remove, unparse_special=unparse),
        raw,
        wrong,
        tiny(**changes),
    )


CASES = (
    # merges
    encode("the lowest rank merges first", "abc", ids("a", "bc"), HighestRankFirst),
    encode("what was merged merges on", "bcd", ids("bcd"), MergesCharactersOnly),
    encode("equal ranks merge from the left", "zzz", ids("zz", "z"), FromTheRight),
    encode(
        "of equal merges the first counts",
        "abc",
        ids("a", "bc"),
        TheLastOfEqualMergesCounts,
        merges=["b c", "a b", "b c"],
    ),
    encode("what is merged need not be a token", " w", ids("w"), MergesOnlyIntoTokens),
    encode("a token that no merge leads to is not found", "klm", ids("kl", "m"), AlwaysAWholeWord),
    encode("or it is, for some", "klm", ids("klm"), NeverAWholeWord, pre="llama-bpe"),
    # words
    encode("words do not merge", "x!!", ids("x", "!!"), MergesAcrossWords),
    encode("one space is the word's", "a    ab", ids("a", "ĠĠ", "Ġ", "Ġab"), MergesAcrossWords),
    encode("a pre-tokenizer is not replaced", " 12", ids("Ġ1", "2"), DefaultForAny),
    encode("no space goes before a text", "ab", ids("ab"), PrefixesASpace, add_space_prefix=True),
    # bytes
    encode("words are spelled in bytes", "ф", ids("Ñ", "Ħ"), NotInBytes),
    encode("what has no token is lost", "aqa", ids("a", "a"), UnknownForWhatHasNoToken),
    encode("but for ASCII, which is kept", " w", ids("w"), SpellsAnyByte),
    encode("what is no UTF-8 is replaced", b"\xc3(", ids(*"ï¿½("), ReadsBytesThatAreNoUtf8),
    encode("overlong forms are read", b"\xc1\xa1\xc1\xa2", ids("ab"), ReadsBytesThatAreNoUtf8),
    encode("a NUL is a byte", "a\0a", ids("a", "Ā", "a"), StopsAtNul),
    # special tokens
    encode("control texts are text", "<s>", ids("<", "s", ">"), ParsesSpecialsAlways),
    encode("or tokens", "<s>x", ids("<s>", "x"), ParsesSpecialsNever, parse=True),
    encode("user-defined tokens are found", "<tool> a", ids("<tool>", "Ġa"), ParsesSpecialsNever),
    encode("no BOS unless a key says so", "x", ids("x"), BosAlways, add=True),
    encode("or the pre-tokenizer", "x", ids("<s>", "x"), BosNever, add=True, pre="tekken"),
    encode("then the key", "x", ids("x"), BosAlways, add=True, pre="tekken", add_bos_token=False),
    encode(
        *("but not for gemma4", "", ids("<s>"), BelievesTheKey),
        add=True,
        pre="gemma4",
        add_bos_token=False,
    ),
    encode("EOS is last", "x", ids("x", "</s>"), BosNever, add=True, add_eos_token=True),
    # words that are not spelled in bytes
    encode(
        "raw words have byte tokens",
        "ф",
        ids("<0xD1>", "<0x84>"),
        UnknownForWhatHasNoToken,
        pre="sarvam-moe",
    ),
    encode("raw words have ▁ for a space", " a", ids("▁a"), DropsTheFirstSpace, pre="sarvam-moe"),
    encode(
        *("newlines that are a token are it", "\n\n", ids("klm"), NotInBytes),
        pre="gemma4",
        tokens=[text.replace("klm", "\n\n") for text in TEXTS],
    ),
    # the way back
    decode("bytes are written", ids("Ġa", "Ċ", "Ã", "©"), " a\né", ShowsTextsAsStored),
    decode("a lone byte is written", ids("a", "Ã"), b"a\xc3", DropsPartialCharacters),
    decode("user-defined tokens are as stored", ids("<tool>"), "<tool>", QuotesPieces),
    decode("byte tokens are their byte", ids("<0x41>"), "A", ShowsTextsAsStored),
    decode("unused tokens write nothing", ids("a", "[gone]"), "a", ShowsTextsAsStored),
    decode(
        "what is no character of a byte is named, with the whole token",
        ids("Ġx日"),
        " x[UNK_BYTE_0xe697a5Ġx日]",
        SkipsWhatIsNoCharacterOfAByte,
    ),
    decode("spaces before punctuation go", ids("a", "Ġ", "!", "Ġ", "'s"), "a!'s", KeepsSpaces),
    decode("or stay", ids("a", "Ġ", "!"), "a !", AlwaysCleans, pre="qwen2"),
    decode(
        *("a BOS that was added goes", ids("<s>", "a"), "a", BelievesTheKey),
        unparse=True,
        remove=True,
        add_bos_token=True,
    ),
    decode("▁ is a space for raw words", ids("▁a"), " a", ShowsTextsAsStored, pre="gemma4"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_rule_holds_and_the_wrong_tokenizer_breaks_it(case: Case) -> None:
    assert case.ask(Gpt2Tokenizer(case.metadata)) == case.expected
    assert case.ask(case.wrong(case.metadata)) != case.expected


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


def test_a_missing_pre_tokenizer_can_be_seen() -> None:
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
    assert tokenizer.encode(b"a b") == ids("a", "b")  # a lone one is a token or lost
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
