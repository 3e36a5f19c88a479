"""The "t5" tokenizer refuses a map of characters that is broken, by its key."""

from struct import pack
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import InvalidModel
from lockstep.engine.tokenizers.base import tokenizer_of
from tests.engine.tokenizers.test_tokenizer_t5 import BLOB, ids, tiny


def blob(words: list[int], replacements: bytes) -> Any:
    trie = np.array(words, "<u4").tobytes()
    return np.frombuffer(pack("<I", len(trie)) + trie + replacements, np.uint8)


CHILD = 256  # where the children of a root with this word are
ROOT = CHILD << 10


def one_child(word: int, leaf: int, replacements: bytes) -> Any:
    """A trie in which `b` leads to a node, and that to a leaf at 512."""
    words = [0] * 768  # whole blocks
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
        ({"precompiled_charsmap": blob([ROOT], b"\0")}, "node 266, which its trie leads to"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_broken_map_is_refused_by_its_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidModel, match=f"tokenizer.ggml.precompiled_charsmap .*{message}"):
        tokenizer_of(tiny(**changes))


@pytest.mark.parametrize(
    ("word", "leaf", "replacements", "message"),
    [
        (0x1FFFFF << 10 | 0x100, 0, b"\0", r"node \d+, which its trie leads to, and has 768"),
        (TO_LEAF, 9, b"abc\0", "ends with NUL at 9, in 4 bytes"),
        (TO_LEAF, 1, b"abc", "ends with NUL at 1, in 3 bytes"),
        (TO_LEAF, 2**31 - 1, b"abc\0", "ends with NUL at 2147483647"),
    ],
)
def test_what_is_broken_further_in_is_refused_when_a_text_leads_there(
    word: int, leaf: int, replacements: bytes, message: str
) -> None:
    tokenizer = tokenizer_of(tiny(precompiled_charsmap=one_child(word, leaf, replacements)))
    assert tokenizer.encode(b"a", add_special=False) == ids("▁a")
    with pytest.raises(InvalidModel, match=message):
        tokenizer.encode(b"b")


def test_a_sound_map_of_this_shape_is_followed() -> None:
    sound = one_child(TO_LEAF, 1, b"?a\0")
    assert tokenizer_of(tiny(precompiled_charsmap=sound)).normalize(b"b") == "▁a".encode()
