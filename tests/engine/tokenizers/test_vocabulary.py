"""Loading a vocabulary: special tokens, repairs and refusals."""

from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import InvalidModel, Unsupported
from lockstep.engine.tokenizers.base import clean_spaces, tokenizer_of
from lockstep.engine.tokenizers.vocabulary import Attr
from tests.engine.tokenizers.test_tokenizer_llama import FIRST_BYTE, TEXTS, ids, renamed, tiny


def test_end_tokens_are_recognised_by_text_and_made_control_tokens() -> None:
    vocabulary = tokenizer_of(tiny()).vocabulary
    turn = TEXTS.index("<end_of_turn>")
    assert vocabulary.eog == frozenset({turn, 2})
    assert vocabulary.roles["eot"] == turn
    assert vocabulary.attrs[turn] == Attr.NORMAL | Attr.CONTROL


def test_an_end_of_turn_key_wins_over_the_text() -> None:
    vocabulary = tokenizer_of(tiny(eot_token_id=5)).vocabulary
    assert vocabulary.roles["eot"] == 5
    assert vocabulary.eog == {2, 5, TEXTS.index("<end_of_turn>")}


def test_harmony_and_unused_tokens_are_retyped() -> None:
    vocabulary = tokenizer_of(tiny()).vocabulary
    assert vocabulary.attrs[TEXTS.index("<|message|>")] == Attr.USER_DEFINED
    assert vocabulary.attrs[TEXTS.index("<unused7>")] == Attr.CONTROL | Attr.UNUSED


def test_harmony_end_token_does_not_end_the_text() -> None:
    tokens = renamed(ab="<|end|>", cd="<|return|>", bc="<|call|>")
    vocabulary = tokenizer_of(tiny(tokens=tokens)).vocabulary
    assert tokens.index("<|end|>") not in vocabulary.eog
    assert tokens.index("<|return|>") in vocabulary.eog
    assert vocabulary.attrs[tokens.index("<|end|>")] == Attr.USER_DEFINED


def test_tool_response_token_makes_the_old_eos_a_normal_token() -> None:
    vocabulary = tokenizer_of(tiny(tokens=renamed(ab="<|tool_response>"))).vocabulary
    assert 2 not in vocabulary.eog
    assert vocabulary.attrs[2] == Attr.NORMAL


def test_empty_token_gets_a_text_and_nul_ends_a_text() -> None:
    vocabulary = tokenizer_of(tiny(tokens=renamed(ab="ab\0c"))).vocabulary
    empty = TEXTS.index("")
    assert vocabulary.texts[empty] == f"[EMPTY_{empty}]".encode()
    assert vocabulary.texts[TEXTS.index("ab")] == b"ab"


def test_tokens_of_phi_3_strip_the_white_space_after_them() -> None:
    tokens = renamed(ab="<|endoftext|>")
    phi = tokenizer_of(tiny(tokens=tokens, name="My Phi-3 mini"))
    other = tokenizer_of(tiny(tokens=tokens, name="My Phi mini"))
    assert phi.encode(b"<tool> \t\n b", add_special=False) == ids("<tool>", "▁", "b")
    assert other.encode(b"<tool> b", add_special=False) == ids("<tool>", "▁▁", "b")
    assert phi.encode(b"<s> b", add_special=False, parse_special=True) == ids("<s>", "▁▁", "b")


@pytest.mark.parametrize("model", [{"pre": "jina-v2-de"}, {"name": "Modern-BERT"}], ids=str)
def test_mask_token_strips_the_white_space_before_it(model: dict[str, str]) -> None:
    mask = "<mask>" if "pre" in model else "[MASK]"
    tokens = renamed(**{"<tool>": mask})
    tokenizer = tokenizer_of(tiny(tokens=tokens, **model))
    assert tokenizer.encode(f"b \n{mask} b".encode(), add_special=False) == ids(
        "▁", "b", "<tool>", "▁▁", "b"
    )


def test_special_ids_beyond_the_vocabulary_leave_the_defaults() -> None:
    vocabulary = tokenizer_of(tiny(bos_token_id=10**6, padding_token_id=2**32 - 1)).vocabulary
    assert (vocabulary.bos, vocabulary.eos, vocabulary.unk) == (1, 2, 0)
    assert vocabulary.roles["pad"] is None


def test_missing_bos_is_refused_when_needed() -> None:
    tokenizer = tokenizer_of(tiny(tokens=["<unk>"], scores=None, token_type=None))
    assert tokenizer.encode(b"", add_special=False) == []
    with pytest.raises(InvalidModel, match="add_bos_token"):
        tokenizer.encode(b"")


def test_scores_may_be_integers_or_missing() -> None:
    scores = tiny()["tokenizer.ggml.scores"].data
    rounded = tokenizer_of(tiny(scores=scores.astype(np.int32)))
    assert rounded.encode(b"mno", add_special=False) == ids("▁", "m", "no")
    without = tokenizer_of(tiny(scores=None))
    assert without.encode(b"mno", add_special=False) == ids("▁", "mn", "o")


N_VOCAB = FIRST_BYTE + 256


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "'tokenizer.ggml.model' is missing"),
        ({"model": 3}, "tokenizer.ggml.model must be a string, got 3"),
        ({"tokens": None}, "'tokenizer.ggml.tokens' is missing"),
        ({"tokens": np.arange(3)}, "tokenizer.ggml.tokens must be an array of strings"),
        ({"tokens": renamed(ab="cd")}, "tokenizer.ggml.tokens must differ.*'cd'"),
        ({"scores": np.zeros(5, np.float32)}, f"tokenizer.ggml.scores .*{N_VOCAB}, got 5"),
        ({"scores": np.zeros(N_VOCAB)}, "tokenizer.ggml.scores .*float32 or int32, got float64"),
        (
            {"scores": np.full(N_VOCAB, np.nan, np.float32)},
            "tokenizer.ggml.scores .*token 0 is NaN",
        ),
        ({"token_type": np.ones(5, np.int32)}, f"tokenizer.ggml.token_type .*{N_VOCAB}, got 5"),
        ({"token_type": np.ones(N_VOCAB, np.int8)}, "tokenizer.ggml.token_type .*int32, got int8"),
        ({"bos_token_id": -1}, "tokenizer.ggml.bos_token_id must be an unsigned .*, got -1"),
        ({"bos_token_id": True}, "tokenizer.ggml.bos_token_id must be an unsigned .*, got True"),
        ({"add_bos_token": 1}, "tokenizer.ggml.add_bos_token must be a bool, got 1"),
        ({"tokens": renamed(**{"<0x41>": "A"})}, "tokenizer.ggml.tokens is a byte token.*'A'"),
        ({"suppress_tokens": np.ones(5, np.int64)}, "tokenizer.ggml.suppress_tokens .*got int64"),
        ({"name": "phi3"}, r"'<\|endoftext\|>' in tokenizer.ggml.tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_wrong_metadata_is_refused_with_its_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        tokenizer_of(tiny(**changes))


@pytest.mark.parametrize("model", ["no_vocab", "none"])
def test_a_model_without_a_vocabulary_is_not_supported(model: str) -> None:
    with pytest.raises(Unsupported, match="the model has no vocabulary"):
        tokenizer_of(tiny(model=model))


def test_unknown_tokenizer_is_refused_with_key_and_known_tokenizers() -> None:
    with pytest.raises(InvalidModel, match=r"tokenizer.ggml.model .*llama.*, got 'lama'"):
        tokenizer_of(tiny(model="lama"))


def test_tokenizer_known_only_to_llama_cpp_is_unsupported() -> None:
    with pytest.raises(Unsupported, match=r"'test' \(known: .*llama"):
        tokenizer_of(tiny(model="test"))


def test_suppressed_tokens_keep_their_order_within_the_vocabulary() -> None:
    suppressed = np.array([7, -1, 3, N_VOCAB, 7], np.int32)
    assert tokenizer_of(tiny(suppress_tokens=suppressed)).vocabulary.suppressed == (7, 3, 7)
    assert tokenizer_of(tiny()).vocabulary.suppressed == ()


def test_stored_types_are_kept_in_addition_to_repaired_types() -> None:
    vocabulary = tokenizer_of(tiny()).vocabulary
    message = TEXTS.index("<|message|>")
    assert vocabulary.stored_attrs[message] == Attr.CONTROL
    assert vocabulary.attrs[message] == Attr.USER_DEFINED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a , b ! c ?", b"a, b! c?"),
        (b"a  .", b"a ."),
        (b" . .", b".."),
        (b"it ' s", b"it's"),
        (b"a ' ' b", b"a'' b"),
        (b"he 's I 'm they 're we 've", b"he's I'm they're we've"),
        (b"don 't he 'd we 'll", b"don 't he 'd we 'll"),
        (b"a '", b"a '"),
        (b"a ;b :c", b"a ;b :c"),
    ],
)
def test_cleaning_drops_the_spaces_before_punctuation(text: bytes, expected: bytes) -> None:
    assert clean_spaces(text) == expected
