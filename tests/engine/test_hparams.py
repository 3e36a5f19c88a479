"""Hyperparameters of llama: values are read, and each missing or wrong key is named."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pytest

from lockstep.engine.architectures.llama import Llama
from lockstep.engine.errors import EngineError, InvalidModel, Unsupported
from lockstep.engine.hparams import architecture_name

PLAIN: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.vocab_size": 100,
    "llama.context_length": 512,
    "llama.embedding_length": 64,
    "llama.block_count": 3,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}
READ: dict[str, Any] = {
    "n_vocab": 100,
    "n_ctx_train": 512,
    "n_embd": 64,
    "n_layer": 3,
    "n_ff": 96,
    "n_head": 4,
    "n_head_kv": 4,
    "n_embd_head": 16,
    "f_norm_rms_eps": 1e-5,
    "rope_freq_base": 10000.0,
    "rope_freq_scale": 1.0,
    "rope_attn_factor": 1.0,
    "n_ctx_orig_yarn": 0,
    "n_expert": 0,
    "n_expert_used": 0,
}


@dataclass(frozen=True)
class Value:
    data: Any


def read(**changes: Any) -> dict[str, Any]:
    """Return keys under `llama.`; two underscores in a name stand for a dot, and None removes a
    key."""
    metadata = dict(PLAIN)
    for key, value in changes.items():
        prefix = "" if key.startswith(("general", "tokenizer")) else "llama."
        metadata[prefix + key.replace("__", ".")] = value
    kept = {key: Value(value) for key, value in metadata.items() if value is not None}
    return asdict(Llama.read_hparams(kept))


def test_plain_model_has_the_defaults() -> None:
    assert read() == READ


GIVEN: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"attention__head_count_kv": 2}, {"n_head_kv": 2}),
    ({"attention__head_count_kv": np.array([2, 2, 2], np.int32)}, {"n_head_kv": 2}),
    ({"attention__key_length": 32, "attention__value_length": 32}, {"n_embd_head": 32}),
    ({"rope__dimension_count": 16}, {}),
    ({"rope__freq_base": 5e5}, {"rope_freq_base": 5e5}),
    ({"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}, {"rope_freq_scale": 0.25}),
    ({"rope__scaling__factor": 4.0}, {"rope_freq_scale": 0.25}),
    ({"rope__scale_linear": 2.0}, {"rope_freq_scale": 0.5}),
    ({"rope__scale_linear": 2.0, "rope__scaling__factor": 4.0}, {"rope_freq_scale": 0.25}),
    ({"rope__scaling__factor": 0.0}, {}),
    ({"rope__scaling__type": "none", "rope__scaling__factor": 4.0}, {}),
    ({"rope__scaling__original_context_length": 4096, "rope__scaling__finetuned": True}, {}),
    (
        {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0},
        {"rope_freq_scale": 0.25, "n_ctx_orig_yarn": 512},
    ),
    (
        {"rope__scaling__type": "yarn", "rope__scaling__original_context_length": 64},
        {"n_ctx_orig_yarn": 64},
    ),
    ({"rope__scaling__attn_factor": 1.5}, {"rope_attn_factor": 1.5}),
    ({"expert_count": 8, "expert_used_count": 2}, {"n_expert": 8, "n_expert_used": 2}),
    ({"expert_count": 2, "expert_used_count": 2}, {"n_expert": 2, "n_expert_used": 2}),
    ({"vocab_size": None, "tokenizer__ggml__tokens": ["a", "b"]}, {"n_vocab": 2}),
    ({"tokenizer__ggml__tokens": ["a", "b"]}, {}),  # the key has priority
]


@pytest.mark.parametrize(("changes", "expected"), GIVEN, ids=[", ".join(c) for c, _ in GIVEN])
def test_key_changes_only_its_own_field(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    assert read(**changes) == READ | expected


REQUIRED = [key for key in PLAIN if key.startswith("llama.")]


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(InvalidModel, match=f"the key '{key}' is missing"):
        read(**{key.removeprefix("llama."): None})


INTEGERS = (
    "vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length",
    "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.value_length", "rope.dimension_count",
)  # fmt: skip
WRONG: list[tuple[str, Any, type[EngineError], str]] = [
    *((key, 0, InvalidModel, "must be positive, got 0") for key in INTEGERS),
    *((key, -1, InvalidModel, "must be positive, got -1") for key in INTEGERS),
    *((key, "8", InvalidModel, "must be of type int, got '8'") for key in INTEGERS),
    *((key, 8.0, InvalidModel, "must be of type int, got 8.0") for key in INTEGERS),
    *((key, True, InvalidModel, "must be of type int, got True") for key in INTEGERS),
    *(
        (key, np.array([2, 4, 2], np.int32), Unsupported, "differs between layers")
        for key in INTEGERS
    ),
    ("expert_count", "8", InvalidModel, "must be of type int, got '8'"),
    ("expert_used_count", 2.0, InvalidModel, "must be of type int, got 2.0"),
    ("attention.layer_norm_rms_epsilon", 1, InvalidModel, "must be a float, got 1"),
    ("attention.layer_norm_rms_epsilon", "x", InvalidModel, "must be of type float, got 'x'"),
    ("rope.freq_base", 10000, InvalidModel, "must be a float, got 10000"),
    ("rope.scaling.factor", 2, InvalidModel, "must be a float, got 2"),
    ("rope.scale_linear", True, InvalidModel, "must be of type float, got True"),
    ("rope.scaling.type", 1, InvalidModel, "must be of type str, got 1"),
    ("rope.scaling.type", "longrope", Unsupported, "is 'longrope'; known: linear, none, yarn"),
    ("rope.scaling.yarn_beta_fast", 8.0, Unsupported, "is 8.0; known: 32.0"),
    ("attention.value_length", 8, InvalidModel, "is 8; expected 16, the size of a head"),
    ("rope.dimension_count", 8, InvalidModel, "is 8; expected 16, the size of a head"),
    ("attention.head_count_kv", 3, InvalidModel, "not a multiple"),
    ("expert_count", 4, InvalidModel, "expert_used_count is 0"),
    ("expert_used_count", 2, InvalidModel, "expert_count 0"),
    ("attention.sliding_window", 4096, Unsupported, "is not known to this engine"),
]


@pytest.mark.parametrize(
    ("key", "value", "kind", "message"), WRONG, ids=[f"{k}={v}" for k, v, _, _ in WRONG]
)
def test_a_wrong_or_unknown_key_is_refused_by_name(
    key: str, value: Any, kind: type[EngineError], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        read(**{key: value})
    assert key.split(".")[-1] in str(caught.value)


@pytest.mark.parametrize("used", [3, 0, -1])
def test_a_number_of_experts_that_cannot_be_used_is_refused(used: int) -> None:
    with pytest.raises(InvalidModel, match=f"expert_used_count is {used} of .*expert_count 2"):
        read(expert_count=2, expert_used_count=used)


def test_odd_head_size_cannot_be_rotated() -> None:
    with pytest.raises(InvalidModel, match="a head of 3 elements"):
        read(attention__key_length=3)


@pytest.mark.parametrize("key", ["general.name", "tokenizer.ggml.pre", "llamas.block_count"])
def test_keys_of_other_architectures_are_ignored(key: str) -> None:
    metadata = {k: Value(v) for k, v in (PLAIN | {key: 7}).items()}
    assert asdict(Llama.read_hparams(metadata)) == READ


def test_the_architecture_is_named_by_the_file() -> None:
    assert architecture_name({"general.architecture": Value("llama")}) == "llama"
    with pytest.raises(InvalidModel, match=r"'general.architecture' is missing"):
        architecture_name({})
    with pytest.raises(InvalidModel, match=r"'general.architecture' must be a string, got 3"):
        architecture_name({"general.architecture": Value(3)})
