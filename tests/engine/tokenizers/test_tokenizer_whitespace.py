"""The "whitespace" tokenizer: what becomes of white space and of case."""

from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.engine.tokenizers.gpt2 import Gpt2Tokenizer
from lockstep.engine.tokenizers.whitespace import WhitespaceTokenizer
from tests.engine.tokenizers.test_tokenizer_gpt2 import ids, tiny


def test_it_drops_white_space_and_lowers_case() -> None:
    metadata, text = tiny(model="whitespace"), "\u3000AB \n ab\t".encode()
    assert isinstance(tokenizer_of(metadata), WhitespaceTokenizer)
    assert WhitespaceTokenizer(metadata).encode(text) == ids("ab", "ab")
    assert Gpt2Tokenizer(metadata).encode(text) != ids("ab", "ab")


def test_case_stays_if_the_pre_tokenizer_or_the_key_says_so() -> None:
    metadata = tiny(model="whitespace", pre="whitespace")
    assert WhitespaceTokenizer(metadata).encode(b"a Aab") == ids("a", "A", "ab")
    lowered = tiny(model="whitespace", pre="whitespace", **{"normalizer.lowercase": True})
    assert WhitespaceTokenizer(lowered).encode(b"a Aab") == ids("a", "a", "ab")
