"""The "llama" tokenizer on a vocabulary written by hand: each rule and each key."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import EngineError, InvalidModel
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.engine.tokenizers.llama import LlamaTokenizer
from tests.tokenizer_cases import (
    CONTROL,
    NORMAL,
    UNDEFINED,
    UNKNOWN,
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

# (text, score, type); the 256 byte tokens follow, so that their ids are FIRST_BYTE + byte
WORDS: tuple[Word, ...] = (
    ("<unk>", 0, UNKNOWN),
    ("<s>", 0, CONTROL),
    ("</s>", 0, CONTROL),
    # spaces
    ("▁", -20, NORMAL),
    ("▁▁", -4, NORMAL),
    ("▁▁▁▁", -5, NORMAL),
    ("▁a", -3, NORMAL),
    # characters, and then their merges
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
    # found before anything is merged
    ("<tool>", 0, USER_DEFINED),
    ("<to", 0, USER_DEFINED),
    ("a▁b", 0, USER_DEFINED),
    ("<x>", 0, CONTROL),
    ("<x", -1, NORMAL),
    # tokens that are repaired during loading
    ("<end_of_turn>", 0, NORMAL),
    ("<|message|>", 0, CONTROL),
    ("<unused7>", 0, CONTROL),
    ("", 0, NORMAL),
)


def unique_words() -> list[Word]:
    """Return WORDS without repeated texts; the last word of a text stays."""
    return list({word[0]: word for word in WORDS}.values())


TEXTS = [text for text, _, _ in unique_words()]
FIRST_BYTE = len(TEXTS)


def tiny(**changes: Any) -> dict[str, Value]:
    """Return the metadata. changes: new values by the last part of their keys; None removes a
    key."""
    return vocabulary("llama", [*unique_words(), *byte_words()], **changes)


def renamed(**new: str) -> list[str]:
    """Return the tokens with some texts replaced; `a="q"` turns "a" into "q"."""
    return [new.get(text, text) for text in tiny()["tokenizer.ggml.tokens"].data]


def without_bytes() -> dict[str, Any]:
    metadata = tiny()
    return {
        key: metadata[f"tokenizer.ggml.{key}"].data[:FIRST_BYTE]
        for key in ("tokens", "scores", "token_type")
    }


def ids(*texts: str | int) -> list[int]:
    """Return the ids of texts; a number stands for the token of that byte."""
    return [FIRST_BYTE + text if isinstance(text, int) else TEXTS.index(text) for text in texts]


# --- each rule ------------------------------------------------------------------------------------


CASES = (
    Case("equal scores merge from the left", plain("baaa"), ids("▁", "b", "aa", "a")),
    Case("the best score merges first", plain("mno"), ids("▁", "m", "no")),
    Case("a lower score loses", plain("mno"), ids("▁", "m", "no")),
    # "bc" waits in the heap while b becomes part of "ab" and c grows to "cd": 0 + 2 bytes, as
    # expected
    Case("a pair that changed is dropped", plain("babcd"), ids("▁", "b", "ab", "cd")),
    Case("merges are greedy, not the best sum", plain("xyw"), ids("▁", "xy", "w")),
    Case("a space goes before the text", plain("b"), ids("▁", "b")),
    Case("the added space merges", plain("ac"), ids("▁a", "c")),
    Case(
        "a space follows special tokens too",
        plain("b<tool>b"),
        ids("▁", "b", "<tool>", "▁", "b"),
    ),
    Case("what is no token is spelled in bytes", plain("q日"), ids("▁", 0x71, "日")),
    Case("a NUL is a byte like others", plain(b"b\0b"), ids("▁", "b", 0, "b") ),
    Case("a first byte takes what follows it", plain(b"\xe6aab"), ids("▁", 0xE6, 0x61, 0x61, "b")),
    Case("control texts are only text", plain("<s>"), ids("▁", "<", "s", ">") ),
    Case(
        "control texts are tokens on request",
        plain("<s>b</s>", parse_special=True),
        ids("<s>", "▁", "b", "</s>"),
    ),
    Case("the unknown token is special as well", plain("<unk>", parse_special=True), ids("<unk>")),
    Case("user-defined tokens are always found", plain("ab<tool>"), ids("▁", "ab", "<tool>")),
    Case("the longest special token is found first", plain("<tool>"), ids("<tool>")),
    Case("a control token can be merged from text", plain("<x>"), ids("▁", "<x>")),
    Case("BOS comes once", plain("b", add_special=True), ids("<s>", "▁", "b")),
    Case(
        "a BOS in the text stays",
        plain("<s>b", add_special=True, parse_special=True),
        ids("<s>", "<s>", "▁", "b"),
    ),
    Case("nothing but BOS for no text", plain("", add_special=True), ids("<s>")),
    Case("a lone byte is written as it is", decode(ids("b", 0xE6)), b"b\xe6" ),
    Case("the space goes from the first token only", decode(ids("<s>", "▁a")), b" a"),
    Case("a removed BOS leaves the space", decode(ids("<s>", "▁a"), remove_special=True), b" a"),
    Case("only one space goes", decode(ids("▁▁", "a")), b" a"),
    Case("unused and undefined tokens write nothing", decode(ids("zz", "ee", "a")), b"a"),
    Case("user-defined tokens are written as stored", decode(ids("a▁b")), "a▁b".encode()),
)  # fmt: skip


def test_tokenizer_follows_every_rule() -> None:
    assert broken_rules(LlamaTokenizer, tiny(), CASES) == []


# --- several rules together --------------------------------------------------------------------


def test_text_without_the_prefix_keeps_its_start_and_its_spaces() -> None:
    tokenizer = tokenizer_of(tiny(add_space_prefix=False))
    assert tokenizer.encode(b" b") == ids("<s>", "▁", "b")
    assert tokenizer.encode(b"b") == ids("<s>", "b")
    assert tokenizer.decode(ids("▁", "b")) == b" b"


def test_metadata_determines_bos_and_eos() -> None:
    tokenizer = tokenizer_of(tiny(add_bos_token=False, add_eos_token=True))
    assert tokenizer.encode(b"b") == ids("▁", "b", "</s>")
    assert tokenizer.encode(b"b", add_special=False) == ids("▁", "b")
    shown = ids("<s>", "b", "</s>", "</s>")
    assert tokenizer.decode(shown, unparse_special=True) == b"<s>b</s></s>"
    assert tokenizer.decode(shown, remove_special=True, unparse_special=True) == b"<s>b</s>"


def test_runs_of_spaces_merge_from_the_left() -> None:
    tokenizer = tokenizer_of(tiny(add_space_prefix=False))
    assert tokenizer.encode(b" " * 7, add_special=False) == ids("▁▁▁▁", "▁▁", "▁")


def test_a_missing_byte_token_is_replaced_by_the_bare_byte_or_refused() -> None:
    some = without_bytes()
    some["tokens"] = [text.replace("<tool>", "\udce6") for text in some["tokens"]]  # byte 0xE6
    some["token_type"] = np.where(some["token_type"] == USER_DEFINED, NORMAL, some["token_type"])
    tokenizer = tokenizer_of(tiny(**some))
    assert tokenizer.encode(b"\xe6ab", add_special=False) == ids("▁", "<tool>", "a", "b")
    with pytest.raises(InvalidModel, match="<0x71>"):
        tokenizer.encode(b"q")


@pytest.mark.parametrize("special", [True, False])
def test_pieces_of_hidden_tokens_are_empty_unless_requested(special: bool) -> None:
    tokenizer = tokenizer_of(tiny())
    found = [
        tokenizer.piece(token, special=special) for token in ids("<unk>", "<s>", "<tool>", "▁a")
    ]
    hidden = [b"<unk>", b"<s>"] if special else [b"", b""]
    assert found == [*hidden, b"<tool>", b" a"]


@pytest.mark.parametrize("token", [-1, FIRST_BYTE + 256])
def test_error_names_an_id_outside_the_vocabulary(token: int) -> None:
    tokenizer = tokenizer_of(tiny())
    with pytest.raises(EngineError, match=f"no token {token}"):
        tokenizer.decode([token])


@pytest.mark.parametrize(
    ("text", "byte"),
    [("<0x0a>", 10), ("<0xA>", 10), ("<0xZZ>", 0), ("<0x-1>", 255), ("<0x", 0), ("abc7F", 0x7F)],
)
def test_byte_token_is_read_by_strtol_from_characters_3_and_4(text: str, byte: int) -> None:
    tokenizer = tokenizer_of(tiny(tokens=renamed(**{"<0x41>": text, "<0x0A>": "newline"})))
    assert tokenizer.piece(FIRST_BYTE + 0x41, special=False) == bytes([byte])


STORIES = Path(__file__).resolve().parents[3].parent / "shared" / "models" / "stories260K.gguf"


@pytest.mark.parametrize(
    ("text", "parse_special", "expected"),
    [
        ("Once upon a time, there was", False, [1, 403, 407, 261, 378, 432, 383, 286]),
        ("  two  spaces\n", False, [1, 410, 410, 259, 424, 414, 410, 262, 427, 412, 331, 419, 13]),
        ("<s>hi</s>", False, [1, 410, 504, 419, 505, 415, 417, 504, 492, 419, 505]),
        ("<s>hi</s>", True, [1, 1, 270, 417, 2]),
        ("日", False, [1, 410, 233, 154, 168]),
    ],
)
def test_ids_of_stories260k_match_llama_cpp(
    text: str, parse_special: bool, expected: list[int]
) -> None:
    if not STORIES.exists():
        pytest.skip("no shared/models/stories260K.gguf: its known ids were not checked")
    with GgufFile.open(STORIES) as file:
        tokenizer = tokenizer_of(file.metadata)
    assert tokenizer.encode(text.encode(), parse_special=parse_special) == expected
