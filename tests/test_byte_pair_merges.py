"""Merging by rank in "gpt2": the same as looking again after every merge, but not as slow."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from engine.tokenizers import gpt2
from engine.tokenizers.base import tokenizer_of
from engine.tokenizers.splitting import Remembered
from tests.test_tokenizer_gpt2 import MERGES, ids, tiny


def looking_again(word: str, ranks: dict[str, int]) -> list[str]:
    """Merges as `merged` does, from the start after every merge."""
    symbols = list(word)
    while True:
        found = [
            (ranks[f"{a} {b}"], i)
            for i, (a, b) in enumerate(pairwise(symbols))
            if f"{a} {b}" in ranks
        ]
        if not found:
            return symbols
        _, at = min(found)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


def growth(merge: Callable[[str, dict[str, int]], list[str]]) -> float:
    """How many times as many look-ups a word four times as long takes."""

    class Counting(dict[str, int]):
        count = 0

        def get(self, key: str, default: Any = None) -> Any:
            self.count += 1
            return super().get(key, default)

        def __contains__(self, key: object) -> bool:
            self.count += 1
            return super().__contains__(key)

    counts = []
    for length in (100, 400):
        ranks = Counting({merge: rank for rank, merge in enumerate(MERGES)})
        merge("ab" * length, ranks)
        counts.append(ranks.count)
    return counts[1] / counts[0]


def test_a_word_four_times_as_long_takes_four_times_the_look_ups_not_sixteen() -> None:
    assert growth(gpt2.merged) < 4.5
    assert growth(looking_again) > 10


@pytest.mark.parametrize(
    "word", ["", "a", "abcd" * 20, "zzzzzzz", "abcbcdab!!x!!!", "Ġ" * 9 + "ab"]
)
def test_merging_is_that_of_looking_again_after_every_merge(word: str) -> None:
    ranks = {merge: rank for rank, merge in enumerate(MERGES)}
    assert gpt2.merged(word, ranks) == looking_again(word, ranks)


def test_a_word_of_a_megabyte_is_encoded_whole() -> None:
    tokens = tokenizer_of(tiny()).encode(b"x" * 2**20)
    assert tokens == ids("x") * 2**20


def test_words_are_kept_but_neither_long_ones_nor_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    cache = Remembered(lambda word: asked.append(word) or [len(word)])
    monkeypatch.setattr(Remembered, "MOST", 2)
    long = "x" * (Remembered.LONGEST + 1)
    assert [cache[word] for word in ("a", "a", long, long, "b", "c", "a")] == [
        *([1], [1], [65], [65], [1], [1], [1])
    ]
    assert asked == ["a", long, long, "b", "c", "a"]
