"""The "hybriddna" tokenizer: text as in "gpt2", and DNA in sixes."""

from lockstep.engine.tokenizers.base import Tokenizer, tokenizer_of
from lockstep.engine.tokenizers.gpt2 import Gpt2Tokenizer
from lockstep.engine.tokenizers.hybriddna import HybridDnaTokenizer
from tests.engine.tokenizers.test_tokenizer_gpt2 import TEXTS, ids, tiny

DNA = ("<dna>", "</dna>", "<oov>", "ACGTAC\ue000", "CAAAAA\ue000")
OPEN, CLOSE, UNKNOWN, WHOLE, FILLED = range(len(TEXTS), len(TEXTS) + 5)
METADATA = tiny(model="hybriddna", tokens=[*TEXTS, *DNA], token_type=None)
MIXED = b"ab<dna>acgtacNNNNNNC</dna>ab<dna>c"


def test_dna_is_cut_into_sixes_and_the_last_is_filled_up() -> None:
    expected = [*ids("ab"), OPEN, WHOLE, UNKNOWN, FILLED, CLOSE, *ids("ab"), OPEN, FILLED]
    tokenizer: Tokenizer = tokenizer_of(METADATA)
    assert isinstance(tokenizer, HybridDnaTokenizer)
    assert tokenizer.encode(MIXED) == expected
    assert Gpt2Tokenizer(METADATA).encode(MIXED) != expected


def test_the_mark_of_dna_is_not_shown() -> None:
    assert HybridDnaTokenizer(METADATA).piece(WHOLE, special=False) == b"ACGTAC"
    assert Gpt2Tokenizer(METADATA).piece(WHOLE, special=False) != b"ACGTAC"


def test_without_tokens_for_dna_it_is_text() -> None:
    metadata = tiny(model="hybriddna")
    assert HybridDnaTokenizer(metadata).encode(MIXED) == Gpt2Tokenizer(metadata).encode(MIXED)
