"""Seeded vocabularies of every kind have the same bytes everywhere, and every token can occur."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.errors import InvalidModel, Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.tokenizers.base import Tokenizer, tokenizer_of
from lockstep.engine.tokenizers.charsmap import Charsmap
from lockstep.engine.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from lockstep.engine.tokenizers.vocabulary import Attr
from lockstep.harness.report.header import sha256_of
from lockstep.harness.synth.builtin import BUILTIN_VOCABULARIES
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from lockstep.harness.synth.vocabularies import KINDS, vocabulary_keys
from lockstep.harness.synth.vocabularies.charsmap import charsmap
from lockstep.harness.synth.vocabularies.glue import ALPHABET, merges_of
from lockstep.harness.synth.vocabularies.t5 import REPLACED

# Other machines, other versions of numpy and later versions of Lockstep must write these bytes.
SHA256: dict[str, str] = {
    "llama": "451800e3fe062b80fe1b80bdacc3ace7c149525ba28a580693ce3f648418a889",
    "llama-ties": "c6e6002ae40b3e22d9f6899458a9d917febe5a8b29996c06cb576211fde10708",
    "gpt2": "dacf822e5662751d58b3dc3fd49cd3c87ff051821d4815ef413960242d15fb15",
    "bert": "35c57d02c11ab137b67f91f1bcb058f9b0c7026c3f2a0b186f1943e554b2a950",
    "t5": "54d9b522a01a5977a2490f5e037e2a2423ad30b0314d446e1fd5dcf4858eaa91",
    "rwkv": "5a32f0efba15ae31a9ca122db407c67bb49318ed1097e9e424cdd0a5fe709036",
    "plamo2": "faebca03f28416095769b6b8ed16117f836b2f91c9efd01e10cf0bc7ce2dae76",
    "gemma4": "318fb6c4e3899bc1d313255dd89207da5b3ed8139b2f8640cf50f7154dd80e06",
    "none": "ba165835cd147dfb336652d716239f51cbd8fe8600b2001bd247e57026861933",
}
WITH_TOKENS = [kind for kind in KINDS if kind != "none"]


def opened(recipe: LlamaRecipe, folder: Path) -> Tokenizer:
    path = folder / "model.gguf"
    write_llama(recipe, path)
    with GgufFile.open(path) as file:
        return tokenizer_of(file.metadata)


@pytest.mark.parametrize("kind", KINDS)
def test_a_built_in_vocabulary_is_the_same_bytes_on_every_machine(
    kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write_llama(BUILTIN_VOCABULARIES[kind], path)
    assert sha256_of(path) == SHA256[kind]


@pytest.mark.parametrize("kind", WITH_TOKENS)
def test_seed_decides_the_tokens_or_their_scores(kind: str) -> None:
    a, b, c = (
        [str(value) for _, value in vocabulary_keys(kind, 640, seed).values()] for seed in (1, 1, 2)
    )
    assert a == b
    assert a != c


@pytest.mark.parametrize("kind", WITH_TOKENS)
@pytest.mark.parametrize("more", [0, 1, 50, 2000])
def test_vocabulary_has_the_requested_number_of_distinct_tokens(kind: str, more: int) -> None:
    n_vocab = KINDS[kind][0] + more
    keys = vocabulary_keys(kind, n_vocab, seed=3)
    tokens = keys["tokenizer.ggml.tokens"][1]
    assert len(tokens) == len(set(tokens)) == n_vocab
    for name in ("scores", "token_type"):
        if f"tokenizer.ggml.{name}" in keys:
            assert len(keys[f"tokenizer.ggml.{name}"][1]) == n_vocab


@pytest.mark.parametrize("kind", WITH_TOKENS)
def test_too_few_tokens_are_refused_with_the_required_number(kind: str) -> None:
    smallest = KINDS[kind][0]
    with pytest.raises(InvalidModel, match=f"needs at least {smallest}"):
        vocabulary_keys(kind, smallest - 1, seed=0)


def test_an_unknown_kind_is_refused_with_the_choices() -> None:
    with pytest.raises(Unsupported, match=r"kind 'bpe' \(known: llama, .*gpt2"):
        vocabulary_keys("bpe", 640, seed=0)


@pytest.mark.parametrize("kind", WITH_TOKENS)
def test_tokenizer_reads_the_vocabulary_and_every_token_can_occur(
    kind: str, tmp_path: Path
) -> None:
    """The tokenizer finds each piece in one of three texts: alone, after a letter, or as a separate
    word."""
    tokenizer = opened(BUILTIN_VOCABULARIES[kind], tmp_path)
    assert tokenizer.name == ("llama" if kind == "llama-ties" else kind)
    attrs = tokenizer.vocabulary.attrs
    whole = [
        (token, piece)
        for token, piece in enumerate(tokenizer.pieces)
        if attrs[token] == Attr.NORMAL and piece.decode(errors="ignore").encode() == piece
    ]
    assert len(whole) > 200
    met: set[int] = set()
    for _, piece in whole:
        met.update(tokenizer.encode(piece), tokenizer.encode(b"e" + piece))
    assert len(met & {token for token, _ in whole}) > 0.8 * len(whole)


def test_model_without_a_vocabulary_is_unsupported(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="no vocabulary"):
        opened(BUILTIN_VOCABULARIES["none"], tmp_path)


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "deepseek-coder"])
def test_a_byte_level_vocabulary_takes_any_pre_tokenizer(pre: str, tmp_path: Path) -> None:
    recipe = LlamaRecipe(
        vocab_kind="gpt2", vocab_pre=pre, n_vocab=640, n_layer=1, n_embd=16, n_head=2
    )
    tokenizer = opened(recipe, tmp_path)
    assert getattr(tokenizer, "pre") == PRE_TOKENIZERS[pre]  # noqa: B009


def test_equal_and_unordered_scores_are_where_documented() -> None:
    scores = vocabulary_keys("llama-ties", 640, seed=1)["tokenizer.ggml.scores"][1]
    pieces = scores[scores < 0]
    assert len(np.unique(pieces)) < len(pieces) / 2
    assert (np.diff(pieces) > 0).sum() > 50


def test_too_few_letters_for_the_pieces_are_refused() -> None:
    with pytest.raises(ValueError, match="2 letters do not make 100 pieces"):
        merges_of("ab", 100, seed=0, legal=lambda piece: len(piece) < 4)


def test_vocabularies_beyond_two_byte_ids_are_made() -> None:
    """Engines with sixteen-bit ids fail on such a vocabulary. Its first tokens are those of a small
    vocabulary."""
    many = merges_of(ALPHABET, 66_000, seed=0)
    assert len({left + right for left, right in many}) == 66_000
    assert many[:300] == merges_of(ALPHABET, 300, seed=0)


# --- the character map --------------------------------------------------------------------------


def test_our_reader_finds_every_replacement_of_the_made_map() -> None:
    found = Charsmap(charsmap(REPLACED))
    for key, value in REPLACED.items():
        text = b"x" + key.encode() + b"z"
        assert found.longest(text, 1) == (value.encode(), len(key.encode())), key
        assert found.longest(text, 0) is None


def test_map_finds_the_longest_sequence_and_no_incomplete_one() -> None:
    found = Charsmap(charsmap({"a": "1", "abc": "2", "xyz": "3"}))
    assert found.longest(b"abd", 0) == (b"1", 1)
    assert found.longest(b"abcd", 0) == (b"2", 3)
    assert found.longest(b"xyq", 0) is None


def test_map_of_many_sequences_is_read_back() -> None:
    replaced = {chr(0xC0 + i) + chr(0x300 + i % 40): f"{i}" for i in range(600)}
    found = Charsmap(charsmap(replaced))
    assert all(
        found.longest(key.encode(), 0) == (value.encode(), len(key.encode()))
        for key, value in replaced.items()
    )
