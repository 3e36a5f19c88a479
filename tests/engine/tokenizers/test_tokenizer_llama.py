"""The "llama" tokenizer on a vocabulary written by hand: each rule, and who gets it wrong."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from lockstep.engine.tokenizers.base import Tokenizer
from lockstep.engine.tokenizers.llama import LlamaTokenizer
from lockstep.engine.tokenizers.vocabulary import Attr
from lockstep.harness.mutants.parts import slow_merges

UNDEFINED, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(7)

# (text, score, type); the 256 byte tokens follow, so that their ids are FIRST_BYTE + byte
WORDS: tuple[tuple[str, float, int], ...] = (
    ("<unk>", 0, UNKNOWN),
    ("<s>", 0, CONTROL),
    ("</s>", 0, CONTROL),
    # spaces
    ("▁", -20, NORMAL),
    ("▁▁", -4, NORMAL),
    ("▁▁▁▁", -5, NORMAL),
    ("▁a", -3, NORMAL),
    # characters, then the ways in which they merge
    *((letter, -30, NORMAL) for letter in "abcdemnowyz<>sx"),
    ("x", -3, NORMAL),
    ("ab", -1, NORMAL),
    ("cd", -1.5, NORMAL),
    ("bc", -9, NORMAL),
    ("cde", -10, NORMAL),
    ("aa", -2, NORMAL),
    ("mn", -9, NORMAL),
    ("no", -1, NORMAL),
    ("xy", -1, NORMAL),
    ("yw", -2, NORMAL),
    ("zz", -1, UNUSED),
    ("ee", -1, UNDEFINED),
    ("日", -8, NORMAL),
    ("日本", -7, NORMAL),
    # looked for before anything is merged
    ("<tool>", 0, USER_DEFINED),
    ("<to", 0, USER_DEFINED),
    ("a▁b", 0, USER_DEFINED),
    ("<x>", 0, CONTROL),
    ("<x", -1, NORMAL),
    # repaired while loading
    ("<end_of_turn>", 0, NORMAL),
    ("<|message|>", 0, CONTROL),
    ("<unused7>", 0, CONTROL),
    ("", 0, NORMAL),
)


@dataclass(frozen=True)
class Value:
    data: Any


def unique_words() -> list[tuple[str, float, int]]:
    """WORDS with the last score given for a text."""
    return list({word[0]: word for word in WORDS}.values())


TEXTS = [text for text, _, _ in unique_words()]
FIRST_BYTE = len(TEXTS)


def tiny(**changes: Any) -> dict[str, Value]:
    """The metadata; a change is under the last part of its key, and None removes that key."""
    words = [*unique_words(), *((f"<0x{byte:02X}>", 0, BYTE) for byte in range(256))]
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [text for text, _, _ in words],
        "tokenizer.ggml.scores": np.array([score for _, score, _ in words], np.float32),
        "tokenizer.ggml.token_type": np.array([kind for _, _, kind in words], np.int32),
    }
    for name, value in changes.items():
        prefix = "general." if name in ("name", "architecture") else "tokenizer.ggml."
        metadata[prefix + name] = value
    return {key: Value(value) for key, value in metadata.items() if value is not None}


def renamed(**new: str) -> list[str]:
    """The tokens with some texts replaced; `a="q"` turns "a" into "q"."""
    return [new.get(text, text) for text in tiny()["tokenizer.ggml.tokens"].data]


def without_bytes() -> dict[str, Any]:
    metadata = tiny()
    return {
        key: metadata[f"tokenizer.ggml.{key}"].data[:FIRST_BYTE]
        for key in ("tokens", "scores", "token_type")
    }


def ids(*texts: str | int) -> list[int]:
    """Ids of texts; a number stands for the token of that byte."""
    return [FIRST_BYTE + text if isinstance(text, int) else TEXTS.index(text) for text in texts]


# --- each rule, and a tokenizer that breaks it ----------------------------------------------------


class TiesFromTheRight(LlamaTokenizer):
    def segment(self, text: bytes) -> Iterable[int]:
        return slow_merges.ids(self, text, from_the_right=True)


class MergesByRank(LlamaTokenizer):
    def order(self) -> Any:
        return np.arange(self.vocabulary.n_vocab, dtype=np.int32)


class WorstScoreFirst(LlamaTokenizer):
    def order(self) -> Any:
        order = super().order()
        return order.max() - order


class ForgetsWhatWasMergedAway(LlamaTokenizer):
    """Compares sizes, and does not see that the left symbol is gone."""

    def segment(self, text: bytes) -> Iterable[int]:
        return slow_merges.ids(self, text, careless=True)


class Unigram(LlamaTokenizer):
    """The segmentation with the best sum of scores: what SentencePiece's other model does."""

    def segment(self, text: bytes) -> Iterable[int]:
        best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
        for end in range(1, len(text) + 1):
            for start in range(end):
                token = self.vocabulary.ids.get(text[start:end])
                if token is None or start not in best:
                    continue
                score = best[start][0] + self.vocabulary.scores[token]
                if end not in best or score > best[end][0]:
                    best[end] = score, [*best[start][1], token]
        return best[len(text)][1]


class NoSpacePrefix(LlamaTokenizer):
    def segment(self, text: bytes) -> Iterable[int]:
        return super().segment(text.removeprefix("▁".encode()))


class PrefixesOnlyTheStart(LlamaTokenizer):
    def segment(self, text: bytes) -> Iterable[int]:
        first = not hasattr(self, "started")
        self.started = True
        return super().segment(text if first else text.removeprefix("▁".encode()))


class UnknownInsteadOfBytes(LlamaTokenizer):
    def byte_token(self, byte: int) -> int:
        return self.vocabulary.unk or 0


class SplitsByContinuation(LlamaTokenizer):
    """Puts every byte that cannot continue a character on its own, as a strict decoder would."""

    def segment(self, text: bytes) -> Iterable[int]:
        parts = text.decode("utf-8", "surrogateescape")
        joined = [part.encode("utf-8", "surrogateescape") for part in parts]
        return [
            token for part in joined for token in super(SplitsByContinuation, self).segment(part)
        ]


class ParsesSpecialsAlways(LlamaTokenizer):
    def partition(self, text: bytes, *, parse_special: bool) -> list[int | bytes]:
        return super().partition(text, parse_special=True)


class ParsesSpecialsNever(LlamaTokenizer):
    def partition(self, text: bytes, *, parse_special: bool) -> list[int | bytes]:
        return super().partition(text, parse_special=False)


class LeavesUserDefinedToTheMerges(LlamaTokenizer):
    def partition(self, text: bytes, *, parse_special: bool) -> list[int | bytes]:
        return super().partition(text, parse_special=True) if parse_special else [text]


class ShortestSpecialFirst(LlamaTokenizer):
    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata)
        specials = self.vocabulary.specials[::-1]
        self.vocabulary = replace(self.vocabulary, specials=specials)


class ControlTokensDoNotMerge(LlamaTokenizer):
    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata)
        vocabulary = self.vocabulary
        plain = {t: i for t, i in vocabulary.ids.items() if not vocabulary.attrs[i] & Attr.CONTROL}
        self.vocabulary = replace(vocabulary, ids=plain)


class DoublesBos(LlamaTokenizer):
    def encode(
        self, text: bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        found = super().encode(text, add_special=add_special, parse_special=parse_special)
        return [*found[:1], *found] if add_special else found


class FoldsBos(LlamaTokenizer):
    def encode(
        self, text: bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        found = super().encode(text, add_special=add_special, parse_special=parse_special)
        return found[1:] if found[:2] == [1, 1] else found


class DropsPartialCharacters(LlamaTokenizer):
    def decode(self, ids: Any, **flags: bool) -> bytes:
        return super().decode(ids, **flags).decode("utf-8", "ignore").encode()


class StripsTheFirstVisibleSpace(LlamaTokenizer):
    def decode(self, ids: Any, **flags: bool) -> bytes:
        return super().decode(ids, **flags).removeprefix(b" ")


class StripsAllSpaces(LlamaTokenizer):
    def decode(self, ids: Any, **flags: bool) -> bytes:
        return super().decode(ids, **flags).lstrip(b" ")


class ShowsUnusedTokens(LlamaTokenizer):
    def render(self, token: int) -> bytes:
        return super().render(token) or self.vocabulary.texts[token]


class UnescapesUserDefined(LlamaTokenizer):
    def render(self, token: int) -> bytes:
        return super().render(token).replace("▁".encode(), b" ")


@dataclass(frozen=True)
class Case:
    rule: str
    ask: Callable[[Tokenizer], Any]
    expected: Any
    wrong: type[LlamaTokenizer]


def plain(text: str | bytes, **flags: bool) -> Callable[[Tokenizer], list[int]]:
    """Encode `text`, without BOS unless asked for."""
    raw = text.encode() if isinstance(text, str) else text
    return lambda tokenizer: tokenizer.encode(raw, **{"add_special": False, **flags})


def decode(tokens: list[int], **flags: bool) -> Callable[[Tokenizer], bytes]:
    return lambda tokenizer: tokenizer.decode(tokens, **flags)


CASES = (
    Case(
        "equal scores merge from the left",
        plain("baaa"),
        ids("▁", "b", "aa", "a"),
        TiesFromTheRight,
    ),
    Case("the best score merges first", plain("mno"), ids("▁", "m", "no"), MergesByRank),
    Case("a lower score loses", plain("mno"), ids("▁", "m", "no"), WorstScoreFirst),
    # "bc" waits in the heap while b goes into "ab" and c grows to "cd": 0 + 2 bytes, as expected
    Case(
        "a pair that changed is dropped",
        plain("babcd"),
        ids("▁", "b", "ab", "cd"),
        ForgetsWhatWasMergedAway,
    ),
    Case("merges are greedy, not the best sum", plain("xyw"), ids("▁", "xy", "w"), Unigram),
    Case("a space goes before the text", plain("b"), ids("▁", "b"), NoSpacePrefix),
    Case("the added space merges", plain("ac"), ids("▁a", "c"), NoSpacePrefix),
    Case(
        "a space follows special tokens too",
        plain("b<tool>b"),
        ids("▁", "b", "<tool>", "▁", "b"),
        PrefixesOnlyTheStart,
    ),
    Case(
        "what is no token is spelled in bytes",
        plain("q日"),
        ids("▁", 0x71, "日"),
        UnknownInsteadOfBytes,
    ),
    Case(
        "a NUL is a byte like others", plain(b"b\0b"), ids("▁", "b", 0, "b"), UnknownInsteadOfBytes
    ),
    Case(
        "a first byte takes what follows it",
        plain(b"\xe6aab"),
        ids("▁", 0xE6, 0x61, 0x61, "b"),
        SplitsByContinuation,
    ),
    Case(
        "control texts are only text", plain("<s>"), ids("▁", "<", "s", ">"), ParsesSpecialsAlways
    ),
    Case(
        "control texts are tokens on request",
        plain("<s>b</s>", parse_special=True),
        ids("<s>", "▁", "b", "</s>"),
        ParsesSpecialsNever,
    ),
    Case(
        "the unknown token is special as well",
        plain("<unk>", parse_special=True),
        ids("<unk>"),
        ParsesSpecialsNever,
    ),
    Case(
        "user-defined tokens are always found",
        plain("ab<tool>"),
        ids("▁", "ab", "<tool>"),
        LeavesUserDefinedToTheMerges,
    ),
    Case(
        "the longest special token is found first",
        plain("<tool>"),
        ids("<tool>"),
        ShortestSpecialFirst,
    ),
    Case(
        "a control token can be merged from text",
        plain("<x>"),
        ids("▁", "<x>"),
        ControlTokensDoNotMerge,
    ),
    Case("BOS comes once", plain("b", add_special=True), ids("<s>", "▁", "b"), DoublesBos),
    Case(
        "a BOS in the text stays",
        plain("<s>b", add_special=True, parse_special=True),
        ids("<s>", "<s>", "▁", "b"),
        FoldsBos,
    ),
    Case("nothing but BOS for no text", plain("", add_special=True), ids("<s>"), DoublesBos),
    Case(
        "a lone byte is written as it is", decode(ids("b", 0xE6)), b"b\xe6", DropsPartialCharacters
    ),
    Case(
        "the space goes from the first token only",
        decode(ids("<s>", "▁a")),
        b" a",
        StripsTheFirstVisibleSpace,
    ),
    Case(
        "a removed BOS leaves the space",
        decode(ids("<s>", "▁a"), remove_special=True),
        b" a",
        StripsTheFirstVisibleSpace,
    ),
    Case("only one space goes", decode(ids("▁▁", "a")), b" a", StripsAllSpaces),
    Case(
        "unused and undefined tokens write nothing",
        decode(ids("zz", "ee", "a")),
        b"a",
        ShowsUnusedTokens,
    ),
    Case(
        "user-defined tokens are written as stored",
        decode(ids("a▁b")),
        "a▁b".encode(),
        UnescapesUserDefined,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_rule_holds_and_the_wrong_tokenizer_breaks_it(case: Case) -> None:
    assert case.ask(LlamaTokenizer(tiny())) == case.expected
    assert case.ask(case.wrong(tiny())) != case.expected
