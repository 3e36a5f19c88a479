"""Seeded llama models of any shape. The recipe determines all bytes."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.engine.errors import InvalidModel
from lockstep.engine.gguf.file import DEFAULT_ALIGNMENT
from lockstep.engine.gguf.types import type_by_name
from lockstep.harness.synth.generator import around_one, integers, stream, tensor_bytes
from lockstep.harness.synth.gguf_writer import write_gguf
from lockstep.harness.synth.vocabularies import check_kind, vocabulary_keys


@dataclass(frozen=True, kw_only=True)
class LlamaRecipe:
    """All choices that determine a model's bytes. Sizes have ggml's names."""

    seed: int = 0
    quant: str = "F32"  # type of all matrices; norms and the router are F32, as in real files
    n_layer: int = 2
    n_embd: int = 64
    n_head: int = 4
    n_head_kv: int = 2
    n_embd_head: int = 0  # 0: n_embd / n_head
    n_ff: int = 96
    n_vocab: int = 384
    n_ctx_train: int = 512
    n_expert: int = 0
    n_expert_used: int = 0
    tied: bool = False  # the output head is the embedding matrix
    rope_freq_base: float = 10000.0
    rope_linear_factor: float = 0.0  # 0: no scaling
    rope_yarn_factor: float = 0.0  # factor of YaRN, from a quarter of the context on; 0: none
    rope_freqs: bool = False
    f_norm_rms_eps: float = 1e-5
    vocabulary: bool = True
    vocab_kind: str = "llama"  # a kind of harness.synth.vocabularies
    vocab_pre: str = ""  # another pre-tokenizer than the usual one of this kind
    alignment: int = DEFAULT_ALIGNMENT  # alignment of tensor data in the file

    @property
    def head_size(self) -> int:
        return self.n_embd_head or self.n_embd // self.n_head


TensorRow = tuple[str, tuple[int, ...], str, Iterable[bytes]]


def write_llama(recipe: LlamaRecipe, path: Path) -> None:
    """Write the model. The bytes depend only on the recipe."""
    check(recipe)
    write_gguf(path, metadata(recipe), tensors(recipe), alignment=recipe.alignment)


def check(r: LlamaRecipe) -> None:
    sizes = ("n_layer", "n_embd", "n_head", "n_head_kv", "head_size", "n_ff", "n_vocab")
    for name in sizes:  # in this order, because head_size is a quotient of two others
        if getattr(r, name) < 1:
            raise InvalidModel(f"{name} is {getattr(r, name)}; expected at least 1")
    if not 0 <= r.seed < 1 << 64:
        raise InvalidModel(f"seed is {r.seed}; expected 0 to 2^64 - 1")
    block = type_by_name(r.quant).block
    for name, size in (("n_embd", r.n_embd), ("n_ff", r.n_ff), ("heads", r.n_head * r.head_size)):
        if size % block:
            raise InvalidModel(f"{name} is {size}; {r.quant} needs a multiple of {block}")
    if r.n_head % r.n_head_kv:
        raise InvalidModel(f"{r.n_head} heads are not a multiple of {r.n_head_kv} KV heads")
    if r.head_size % 2:
        raise InvalidModel(
            f"a head has {r.head_size} elements (width {r.n_embd}, {r.n_head} heads); "
            "rope rotates pairs, so the number must be even"
        )
    if r.vocabulary:
        check_kind(r.vocab_kind, r.n_vocab)
    if not 0 <= r.n_expert_used <= r.n_expert or bool(r.n_expert) != bool(r.n_expert_used):
        raise InvalidModel(f"{r.n_expert_used} of {r.n_expert} experts cannot be used")


def metadata(r: LlamaRecipe) -> dict[str, tuple[str, Any]]:
    keys: dict[str, tuple[str, Any]] = {
        "general.architecture": ("STR", "llama"),
        "general.name": ("STR", f"lockstep synth llama {r.quant} seed {r.seed}"),
        "llama.context_length": ("U32", r.n_ctx_train),
        "llama.embedding_length": ("U32", r.n_embd),
        "llama.block_count": ("U32", r.n_layer),
        "llama.feed_forward_length": ("U32", r.n_ff),
        "llama.attention.head_count": ("U32", r.n_head),
        "llama.attention.head_count_kv": ("U32", r.n_head_kv),
        "llama.attention.layer_norm_rms_epsilon": ("F32", r.f_norm_rms_eps),
        "llama.rope.dimension_count": ("U32", r.head_size),
        "llama.rope.freq_base": ("F32", r.rope_freq_base),
        "llama.vocab_size": ("U32", r.n_vocab),
    }
    if r.n_embd_head:
        keys["llama.attention.key_length"] = ("U32", r.n_embd_head)
        keys["llama.attention.value_length"] = ("U32", r.n_embd_head)
    if r.rope_linear_factor:
        keys["llama.rope.scaling.type"] = ("STR", "linear")
        keys["llama.rope.scaling.factor"] = ("F32", r.rope_linear_factor)
    if r.rope_yarn_factor:
        keys["llama.rope.scaling.type"] = ("STR", "yarn")
        keys["llama.rope.scaling.factor"] = ("F32", r.rope_yarn_factor)
        keys["llama.rope.scaling.original_context_length"] = ("U32", r.n_ctx_train // 4)
    if r.n_expert:
        keys["llama.expert_count"] = ("U32", r.n_expert)
        keys["llama.expert_used_count"] = ("U32", r.n_expert_used)
    if r.vocabulary:
        keys.update(vocabulary_keys(r.vocab_kind, r.n_vocab, r.seed, r.vocab_pre))
    else:
        keys["tokenizer.ggml.model"] = ("STR", "no_vocab")
    return keys


def tensors(r: LlamaRecipe) -> Iterator[TensorRow]:
    """Yield the name, the sizes in ggml's order, the type and the bytes of each tensor."""
    q, kv = r.n_head * r.head_size, r.n_head_kv * r.head_size
    yield matrix(r, "token_embd", (r.n_embd, r.n_vocab), sigma=1.0)
    if r.rope_freqs:
        yield "rope_freqs.weight", (r.head_size // 2,), "F32", [rope_factors(r)]
    for layer in range(r.n_layer):
        block = f"blk.{layer}."
        yield norm(r, block + "attn_norm")
        yield matrix(r, block + "attn_q", (r.n_embd, q))
        yield matrix(r, block + "attn_k", (r.n_embd, kv))
        yield matrix(r, block + "attn_v", (r.n_embd, kv))
        yield matrix(r, block + "attn_output", (q, r.n_embd))
        yield norm(r, block + "ffn_norm")
        yield from (experts if r.n_expert else feed_forward)(r, block)
    yield norm(r, "output_norm")
    if not r.tied:
        yield matrix(r, "output", (r.n_embd, r.n_vocab))


def feed_forward(r: LlamaRecipe, block: str) -> Iterator[TensorRow]:
    yield matrix(r, block + "ffn_gate", (r.n_embd, r.n_ff))
    yield matrix(r, block + "ffn_up", (r.n_embd, r.n_ff))
    yield matrix(r, block + "ffn_down", (r.n_ff, r.n_embd))


def experts(r: LlamaRecipe, block: str) -> Iterator[TensorRow]:
    yield matrix(r, block + "ffn_gate_inp", (r.n_embd, r.n_expert), quant="F32")
    yield matrix(r, block + "ffn_gate_exps", (r.n_embd, r.n_ff, r.n_expert))
    yield matrix(r, block + "ffn_up_exps", (r.n_embd, r.n_ff, r.n_expert))
    yield matrix(r, block + "ffn_down_exps", (r.n_ff, r.n_embd, r.n_expert))


def matrix(
    r: LlamaRecipe,
    name: str,
    ne: tuple[int, ...],
    *,
    sigma: float | None = None,
    quant: str | None = None,
) -> TensorRow:
    """Return a row for a matrix. The default standard deviation, 1 / sqrt(inputs), keeps the size
    of activations."""
    spread = ne[0] ** -0.5 if sigma is None else sigma
    kind = quant or r.quant
    n = int(np.prod(ne))
    return f"{name}.weight", ne, kind, Lazy(lambda: draw(r, name, kind, n, spread))


def draw(r: LlamaRecipe, name: str, kind: str, n: int, sigma: float) -> Iterator[bytes]:
    return tensor_bytes(stream(r.seed, f"{name}.weight"), kind, n, sigma)


def norm(r: LlamaRecipe, name: str) -> TensorRow:
    values = around_one(stream(r.seed, f"{name}.weight"), r.n_embd)
    return f"{name}.weight", (r.n_embd,), "F32", [values.astype("<f4").tobytes()]


def rope_factors(r: LlamaRecipe) -> bytes:
    """Return rope factors from 1 to 8 in steps of an eighth, as in long-context models."""
    steps = integers(stream(r.seed, "rope_freqs.weight"), r.head_size // 2, 57)
    return (1 + steps / 8).astype("<f4").tobytes()


@dataclass(frozen=True)
class Lazy:
    """An iterable that draws its numbers only when it is iterated."""

    make: Callable[[], Iterator[bytes]]

    def __iter__(self) -> Iterator[bytes]:
        return self.make()
