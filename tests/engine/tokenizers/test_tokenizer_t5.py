"""The "t5" tokenizer on a vocabulary written by hand: each rule and each key."""

from collections.abc import Mapping
from struct import pack
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import InvalidModel
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.engine.tokenizers.charsmap import Charsmap
from lockstep.engine.tokenizers.t5 import T5Tokenizer
from tests.tokenizer_cases import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Case,
    Value,
    Word,
    broken_rules,
    plain,
    vocabulary,
)

# --- a character map, written as SentencePiece writes it ------------------------------------------

FORMS = {
    "ａ": "a", "ｂ": "b", "＜": "<", "\u00a0": " ", "\u3000": " ", "\t": " ", "\n": " ",
    "\u00ad": "", "\x01": "", "ﬁ": "fi", "e\u0301": "é", "o\u0302\u0301": "ố", "…": "...",
    "㌔": "キロ", "日々": "日日",
}  # fmt: skip


def charsmap(forms: Mapping[str, str], first_base: int = 256) -> bytes:
    """Return the blob: a trie as an XOR-compressed double array, and the replacements after it."""
    replacements = b"".join(form.encode() + b"\0" for form in forms.values())
    starts, at = {}, 0
    for text, form in forms.items():
        starts[text.encode()] = at
        at += len(form.encode()) + 1
    words: dict[int, int] = {0: 0}
    place(words, 0, b"", starts, first_base)
    nodes = [words.get(index, 0) for index in range((max(words) | 255) + 1)]  # complete blocks
    trie = np.array(nodes, "<u4").tobytes()
    return pack("<I", len(trie)) + trie + replacements


def place(
    words: dict[int, int], node: int, path: bytes, starts: Mapping[bytes, int], base: int
) -> None:
    """Place the children of a node at a base where their places are free, then the children of each
    child."""
    children = {text[len(path)] for text in starts if text.startswith(path) and text != path}
    wanted = sorted(children | ({0} if path in starts else set()))
    while any(base ^ byte in words for byte in wanted):
        base += 256 if not path else 1
    offset = node ^ base
    shift = 0x200 | offset >> 8 << 10 if offset % 256 == 0 else offset << 10
    words[node] |= shift | (0x100 if path in starts else 0)
    for byte in wanted:
        words[base ^ byte] = byte if byte else starts[path] | 1 << 31
    for byte in sorted(children):
        place(words, base ^ byte, path + bytes([byte]), starts, 1)


@pytest.mark.parametrize("text", FORMS)
def test_written_map_is_read_back(text: str) -> None:
    raw = text.encode()
    found = Charsmap(charsmap(FORMS)).longest(b"x" + raw + b"x", 1)
    assert found == (FORMS[text].encode(), len(raw))


def test_longest_sequence_wins_and_the_remainder_stays_unmapped() -> None:
    both = Charsmap(charsmap(FORMS | {"e": "E"}))
    assert both.longest("e\u0301".encode(), 0) == ("é".encode(), 3)
    assert both.longest("e\u0302".encode(), 0) == (b"E", 1)
    assert both.longest(b"x", 0) is None
    assert both.longest(b"\0", 0) is None
    assert Charsmap(b"\3\0\0\0...rest").longest(b"x", 0) is None  # shorter than one node


# --- a vocabulary ---------------------------------------------------------------------------------

WORDS: tuple[Word, ...] = (
    ("<pad>", 0, CONTROL),
    ("</s>", 0, CONTROL),
    ("<unk>", 0, UNKNOWN),
    ("<s>", 0, CONTROL),
    ("▁", -2, NORMAL),
    ("▁a", -1.5, NORMAL),
    ("▁▁", -3, NORMAL),
    *((letter, -4.0, NORMAL) for letter in "abcdefghi<>"),
    # ties: "ab" + "c" and "a" + "bc"; and a greedy choice with a worse sum
    ("ab", -2.25, NORMAL),
    ("bc", -2.25, NORMAL),
    ("abc", -9, NORMAL),
    ("gh", -5, NORMAL),
    ("ghi", -9.5, NORMAL),
    ("xy", -13, NORMAL),
    ("y", -1, NORMAL),
    ("zz", -1, UNUSED),
    ("<0x71>", -1, BYTE),
    ("é", -5, NORMAL),
    ("月", -5, NORMAL),
    ("日", -5, NORMAL),
    ("fi", -3, NORMAL),
    ("\ufffd", -6, NORMAL),
    ("...", -3, NORMAL),
    ("<tool>", -500, USER_DEFINED),
    ("日x", -50, USER_DEFINED),
    ("ph▁ph", -50, USER_DEFINED),
    ("<|message|>", -3, NORMAL),
    ("<|start|>", -3, CONTROL),
)
TEXTS = [text for text, _, _ in WORDS]
BLOB = np.frombuffer(charsmap(FORMS), np.uint8)


def tiny(**changes: Any) -> dict[str, Value]:
    usual = {"add_space_prefix": True, "remove_extra_whitespaces": True}
    return vocabulary("t5", WORDS, **(usual | {"precompiled_charsmap": BLOB} | changes))


def ids(*texts: str) -> list[int]:
    return [TEXTS.index(text) for text in texts]


# --- each rule ------------------------------------------------------------------------------------


CASES = (
    Case("characters are replaced", plain("ａﬁ"), ids("▁a", "fi")),
    Case("one can become many", plain("a…"), ids("▁a", "...")),
    Case("or none", plain("a\u00adb"), ids("▁", "ab")),
    Case("or a space", plain("a\u00a0\u3000b"), ids("▁a", "▁", "b")),
    Case("sequences are replaced", plain("be\u0301"), ids("▁", "b", "é")),
    Case("a space goes before the text", plain("b"), ids("▁", "b")),
    Case("it is part of a piece", plain("a"), ids("▁a")),
    Case("a space follows special tokens", plain("b<tool>b"), ids("▁", "b", "<tool>", "▁", "b")),
    Case("runs of spaces are one, and none at the end", plain("  b   b  "),
         ids("▁", "b", "▁", "b")),
    Case("so are those that characters become", plain("b\t \u3000b"), ids("▁", "b", "▁", "b")),
    Case("nothing but spaces is nothing", plain(" \n\t "), []),
    Case("the best sum wins", plain("ghi"), ids("▁", "gh", "i")),
    Case("and not the shortest piece", plain("fi"), ids("▁", "fi")),
    Case("of equal sums the first stays", plain("dabc"), ids("▁", "d", "a", "bc")),
    Case("a run of unknown characters is one", plain("qqq日q"), ids("▁", "<unk>", "日", "<unk>")),
    Case("unknown is worse than the worst piece", plain("xy"), ids("▁", "xy")),
    Case("unused pieces are found", plain("zz"), ids("▁", "zz")),
    Case("user-defined pieces that come of a form score 0", plain("＜tool>"), ids("▁", "<tool>")),
    Case("the beginning of a user-defined token is left as it is, byte by byte", plain("月"),
         ids("▁", "<unk>", "\ufffd")),
    Case("and keeps what follows from its form", plain("<tｂ"), ids("▁", "<", "<unk>", "b")),
    Case("what was a control token is no piece", plain("＜|start|>"),
         ids("▁", "<", "<unk>", "a", "<unk>", ">")),
    Case("bytes that are no UTF-8 are U+FFFD", plain(b"b\xffb\xf5"),
         ids("▁", "b", "\ufffd", "b", "\ufffd")),
    Case("there is no byte fallback", plain("q"), ids("▁", "<unk>")),
    Case("EOS ends a text", plain("b", add_special=True), ids("▁", "b", "</s>")),
    Case("there is no BOS", plain("", add_special=True), ids("</s>")),
)  # fmt: skip


def test_tokenizer_follows_every_rule() -> None:
    assert broken_rules(T5Tokenizer, tiny(), CASES) == []


# --- keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "merge", "expected"),
    [
        (False, False, ids("b", "▁▁", "b", "▁")),
        (True, False, ids("▁", "b", "▁▁", "b", "▁")),
        (False, True, ids("▁", "b", "▁", "b")),  # the leading space is added anyway
        (True, True, ids("▁", "b", "▁", "b")),
    ],
)
def test_two_keys_determine_spaces(prefix: bool, merge: bool, expected: list[int]) -> None:
    tokenizer = tokenizer_of(tiny(add_space_prefix=prefix, remove_extra_whitespaces=merge))
    assert tokenizer.encode(b"b  b ", add_special=False) == expected


def test_prefix_comes_before_the_first_word_and_not_before_spaces() -> None:
    tokenizer = tokenizer_of(tiny(remove_extra_whitespaces=False))
    assert tokenizer.normalize(b" b") == "▁▁b".encode()
    assert tokenizer.normalize(b"  ") == "▁▁".encode()


def test_decoding_drops_the_space_of_the_prefix() -> None:
    assert tokenizer_of(tiny()).decode(ids("▁a", "▁", "</s>")) == b"a "
    assert tokenizer_of(tiny(add_space_prefix=False)).decode(ids("▁a")) == b" a"


def test_bos_is_added_on_request_and_must_exist() -> None:
    tokenizer = tokenizer_of(tiny(add_bos_token=True, bos_token_id=3, add_eos_token=False))
    assert tokenizer.encode(b"a") == ids("<s>", "▁a")
    with pytest.raises(InvalidModel, match=r"tokenizer.ggml.bos_token_id"):
        tokenizer_of(tiny(add_bos_token=True)).encode(b"a")


def test_an_unknown_character_without_an_unknown_token_is_refused() -> None:
    tokens = vocabulary("t5", WORDS[:2], eos_token_id=1)
    with pytest.raises(InvalidModel, match=r"tokenizer.ggml.unknown_token_id"):
        tokenizer_of(tokens).encode(b"q")


def test_unknown_penalty_is_subtracted_in_float32() -> None:
    words = [*WORDS[:3], ("q", -(2.0**24), NORMAL)]
    assert tokenizer_of(vocabulary("t5", words)).unknown_score == -(2.0**24) - 10
    words = [*WORDS[:3], ("q", -(2.0**25), NORMAL)]
    # the nearest float32
    assert tokenizer_of(vocabulary("t5", words)).unknown_score == -(2.0**25) - 8
    assert tokenizer_of(vocabulary("t5", WORDS[:3])).unknown_score == np.finfo(np.float32).max


def test_scores_of_minus_infinity_give_one_unknown_token() -> None:
    words = [*WORDS[:4], *((letter, -np.inf, NORMAL) for letter in "ab")]
    assert tokenizer_of(vocabulary("t5", words)).encode(b"abab", add_special=False) == [2]


@pytest.mark.parametrize("word", [b"x", b"ab", b"q"], ids=str)
def test_a_word_of_a_quarter_of_a_megabyte_is_encoded(word: bytes) -> None:
    tokenizer = tokenizer_of(tiny())
    short, long = (tokenizer.encode(word * n, add_special=False) for n in (64, 2**18 // len(word)))
    assert set(long) == set(short)


# --- a map of characters that is broken -------------------------------------------------------


def blob(words: list[int], replacements: bytes) -> Any:
    trie = np.array(words, "<u4").tobytes()
    return np.frombuffer(pack("<I", len(trie)) + trie + replacements, np.uint8)


CHILD = 256  # index of the children of a root with this word
ROOT = CHILD << 10


def one_child(word: int, leaf: int, replacements: bytes) -> Any:
    """Return a trie in which `b` leads to a node, and this node leads to a leaf at 512."""
    words = [0] * 768  # complete blocks
    words[0], words[CHILD ^ ord("b")], words[512] = ROOT, word | ord("b"), leaf
    return blob(words, replacements)


TO_LEAF = (CHILD ^ ord("b") ^ 512) << 10 | 0x100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precompiled_charsmap": np.zeros(3, np.uint8)}, "size of 4 bytes, got 3 bytes"),
        ({"precompiled_charsmap": np.zeros(4, np.uint8)}, r"after its trie: 4 \+ 0 bytes, got 4"),
        ({"precompiled_charsmap": BLOB[:-200].copy()}, "after its trie: "),
        ({"precompiled_charsmap": np.full(90, 255, np.uint8)}, r"4 \+ 4294967295 bytes, got 90"),
        ({"precompiled_charsmap": np.zeros(9, np.float32)}, "array of int8 or uint8, got float32"),
        ({"precompiled_charsmap": "abcdefgh"}, "array of int8 or uint8, got str"),
        ({"precompiled_charsmap": blob([ROOT], b"\0")}, "node 266, to which its trie leads"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_broken_map_is_refused_by_its_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidModel, match=f"tokenizer.ggml.precompiled_charsmap .*{message}"):
        tokenizer_of(tiny(**changes))


@pytest.mark.parametrize(
    ("word", "leaf", "replacements", "message"),
    [
        (0x1FFFFF << 10 | 0x100, 0, b"\0", r"node \d+, to which its trie leads, but has 768"),
        (TO_LEAF, 9, b"abc\0", "ends with NUL at 9, in 4 bytes"),
        (TO_LEAF, 1, b"abc", "ends with NUL at 1, in 3 bytes"),
        (TO_LEAF, 2**31 - 1, b"abc\0", "ends with NUL at 2147483647"),
    ],
)
def test_broken_map_is_refused_once_a_text_reaches_the_break(
    word: int, leaf: int, replacements: bytes, message: str
) -> None:
    tokenizer = tokenizer_of(tiny(precompiled_charsmap=one_child(word, leaf, replacements)))
    assert tokenizer.encode(b"a", add_special=False) == ids("▁a")
    with pytest.raises(InvalidModel, match=message):
        tokenizer.encode(b"b")


def test_valid_map_of_the_same_shape_is_read() -> None:
    sound = one_child(TO_LEAF, 1, b"?a\0")
    assert tokenizer_of(tiny(precompiled_charsmap=sound)).normalize(b"b") == "▁a".encode()
