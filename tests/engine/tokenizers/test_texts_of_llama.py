"""The "llama" tokenizer: what no single rule says of encoding and decoding."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.errors import EngineError, InvalidModel
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.tokenizers.base import tokenizer_of
from tests.engine.tokenizers.test_tokenizer_llama import (
    FIRST_BYTE,
    NORMAL,
    USER_DEFINED,
    ids,
    renamed,
    tiny,
    without_bytes,
)


def test_without_the_prefix_text_starts_as_it_is_and_keeps_its_spaces_on_the_way_back() -> None:
    tokenizer = tokenizer_of(tiny(add_space_prefix=False))
    assert tokenizer.encode(b" b") == ids("<s>", "▁", "b")
    assert tokenizer.encode(b"b") == ids("<s>", "b")
    assert tokenizer.decode(ids("▁", "b")) == b" b"


def test_bos_and_eos_come_and_go_as_the_metadata_says() -> None:
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
def test_pieces_of_hidden_tokens_are_empty_unless_asked_for(special: bool) -> None:
    tokenizer = tokenizer_of(tiny())
    found = [
        tokenizer.piece(token, special=special) for token in ids("<unk>", "<s>", "<tool>", "▁a")
    ]
    hidden = [b"<unk>", b"<s>"] if special else [b"", b""]
    assert found == [*hidden, b"<tool>", b" a"]


@pytest.mark.parametrize("token", [-1, FIRST_BYTE + 256])
def test_an_id_beyond_the_vocabulary_is_refused_by_name(token: int) -> None:
    tokenizer = tokenizer_of(tiny())
    with pytest.raises(EngineError, match=f"no token {token}"):
        tokenizer.decode([token])


@pytest.mark.parametrize(
    ("text", "byte"),
    [("<0x0a>", 10), ("<0xA>", 10), ("<0xZZ>", 0), ("<0x-1>", 255), ("<0x", 0), ("abc7F", 0x7F)],
)
def test_a_byte_token_is_read_as_strtol_reads_characters_three_and_four(
    text: str, byte: int
) -> None:
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
def test_ids_of_stories260k_are_those_that_llama_cpp_gave(
    text: str, parse_special: bool, expected: list[int]
) -> None:
    if not STORIES.exists():
        pytest.skip("no shared/models/stories260K.gguf: its known ids were not checked")
    with GgufFile.open(STORIES) as file:
        tokenizer = tokenizer_of(file.metadata)
    assert tokenizer.encode(text.encode(), parse_special=parse_special) == expected
