"""Compiled merging equals a plain Python loop for any vocabulary, and handles long words."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from lockstep.engine.errors import EngineError
from lockstep.engine.tokenizers import merging
from lockstep.engine.tokenizers.base import Tokenizer, tokenizer_of
from lockstep.engine.tokenizers.llama import LlamaTokenizer
from lockstep.engine.tokenizers.splitting import Remembered
from lockstep.engine.tokenizers.tables import Needles, hash_prefixes, table_of, table_of_merges
from lockstep.harness.mutants.parts import slow_merges as slow
from tests.engine.tokenizers import test_tokenizer_gpt2 as gpt2
from tests.engine.tokenizers import test_tokenizer_llama as llama
from tests.tokenizer_cases import byte_words, random_merges, random_words, vocabulary

ALPHABETS = ("ab", "abc", "aé日", "▁ab", "xyz\U0001f600")


def texts(seed: int, alphabet: str) -> Iterator[bytes]:
    """Yield texts of the alphabet, some with characters without a token, some cut at the end."""
    raw = iter(np.random.Philox(seed).random_raw(20_000).tolist())
    for count in range(150):
        letters = [(alphabet + "q")[next(raw) % (len(alphabet) + 1)] for _ in range(count % 60)]
        text = "".join(letters).encode()
        yield text[: len(text) - next(raw) % 2]


def of_llama(seed: int, alphabet: str) -> Tokenizer:
    return tokenizer_of(vocabulary("llama", [("<unk>", 0, 2), *byte_words(),
                                             *random_words(seed, alphabet)]))  # fmt: skip


@pytest.mark.parametrize("alphabet", ALPHABETS)
@pytest.mark.parametrize("seed", range(3))
def test_merging_by_score_matches_plain_python(seed: int, alphabet: str) -> None:
    tokenizer = of_llama(seed, alphabet)
    assert isinstance(tokenizer, LlamaTokenizer)
    given = [text for text in texts(seed, alphabet) if text]
    assert [list(tokenizer.segment(text)) for text in given] == [
        slow.ids(tokenizer, text) for text in given
    ]


@pytest.mark.parametrize("wrong", [{"from_the_right": True}, {"careless": True}], ids=str)
def test_wrong_plain_merging_gives_other_ids(wrong: dict[str, bool]) -> None:
    found = 0
    for alphabet in ALPHABETS:
        tokenizer = of_llama(1, alphabet)
        assert isinstance(tokenizer, LlamaTokenizer)
        given = [text for text in texts(1, alphabet) if text]
        found += sum(list(tokenizer.segment(t)) != slow.ids(tokenizer, t, **wrong) for t in given)
    assert found > 0


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_merging_by_rank_matches_plain_python(alphabet: str) -> None:
    words = random_words(5, alphabet)
    merges = random_merges(words)
    ranks = {tuple(merge.encode().split(b" ")): rank for rank, merge in enumerate(merges)}
    tokens = list(dict.fromkeys([*(text for text, _, _ in words), "q"]))
    ids = {text.encode(): i for i, text in enumerate(tokens)}
    rules = merging.Merging(
        pairs=table_of_merges([merge.encode() for merge in merges]),
        by_split=True,
        tokens=table_of(ids, ids.values()),
        spell=np.full(256, 999, np.int32),
    )
    assert len(ranks) > 30
    given = [text.decode(errors="ignore").encode() for text in texts(7, alphabet)]
    expected = [
        [ids[s] for s in slow.merge_parts(slow.characters(text), lambda a, b: ranks.get((a, b)))]
        for text in given
    ]
    sizes = [len(text.decode()) for text in given]
    assert rules.ids(b"".join(given), sizes) == expected


# --- long words ---------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["x", "ab", "aab", "cde"])
def test_a_word_of_a_megabyte_is_merged(word: str) -> None:
    """A time that grows with the square of the length would take days."""
    tokenizer = tokenizer_of(llama.tiny(add_space_prefix=False))
    text = word.encode() * (2**20 // len(word))
    found = tokenizer.encode(text, add_special=False)
    assert b"".join(tokenizer.pieces[token] for token in found) == text
    few = tokenizer.encode(word.encode() * 8, add_special=False)
    assert set(few) == set(found)


def test_a_byte_level_word_of_a_megabyte_is_merged() -> None:
    tokens = tokenizer_of(gpt2.tiny()).encode(b"x" * 2**20)
    assert tokens == gpt2.ids("x") * 2**20


def test_text_with_too_many_symbols_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merging, "LONGEST", 5)
    tokenizer = tokenizer_of(gpt2.tiny())
    assert tokenizer.encode(b"x" * 5) == gpt2.ids("x") * 5
    with pytest.raises(EngineError, match="5 bytes at most, got 6"):
        tokenizer.encode(b"x" * 6)


# --- tables -------------------------------------------------------------------------------------


def test_table_holds_exactly_its_entries() -> None:
    known = [b"%d" % (i * i) for i in range(5000)]
    needles = Needles(known)
    assert needles.present(b"1234567") == sorted(
        i for i, text in enumerate(known) if text in b"1234567"
    )
    assert needles.present(b"") == Needles([]).present(b"a") == []


def test_first_of_equal_merges_is_used_and_the_split_matters() -> None:
    table = table_of_merges([b"a bc", b"ab c", b"a bc", b"abc", b" abc", b"a  bc", b"", b"x y\xff"])
    slots = table.rows[table.tags > 0]
    assert sorted(slots[:, 3].tolist()) == [0, 1, 7]
    assert sorted((slots[:, 2] & 0xFF).tolist()) == [1, 1, 2]


def test_adjacent_characters_of_a_token_are_never_separated() -> None:
    tokenizer = tokenizer_of(llama.tiny())
    for text in llama.TEXTS:
        for one, other in pairwise(text):
            pair = (one + other).encode()
            assert not is_cut(tokenizer, pair), (text, pair)
    assert is_cut(tokenizer, b"qq")


def is_cut(tokenizer: Tokenizer, pair: bytes) -> bool:
    assert isinstance(tokenizer, LlamaTokenizer)
    table, raw = tokenizer.merging.pairs, np.frombuffer(pair, np.uint8)
    symbols = np.empty((len(raw) + 1, 4), np.int32)
    hashes = hash_prefixes(raw)
    return merging.cut(raw, hashes, table.powers, table.joints, 0, len(raw), symbols) == 1


# --- cache of words -------------------------------------------------------------------------------


def test_short_words_are_cached_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def sizes(words: list[str]) -> list[list[int]]:
        asked.extend(words)
        return [[len(word)] for word in words]

    cache = Remembered(sizes)
    monkeypatch.setattr(Remembered, "MOST", 2)
    long = "x" * (Remembered.LONGEST + 1)
    assert cache.over(["a", "a", long, long]) == [1, 1, 65, 65]
    assert cache.over([long, "b", "a"]) == [65, 1, 1]
    assert cache.over(["c", "a"]) == [1, 1]
    assert cache.over(["a"]) == [1]
    assert asked == ["a", long, long, "b", "c", "a"]
