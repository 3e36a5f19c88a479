"""The smallest models of each kind of memory: full attention (also with YaRN), window, states,
hybrid.

They are for questions about batches and caches, in which the numbers only have to distinguish
histories.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.harness.synth.generator import around_one, stream, tensor_bytes
from lockstep.harness.synth.gguf_writer import write_gguf
from lockstep.harness.synth.llama import LlamaRecipe, TensorRow, metadata, tensors

N_VOCAB, WIDTH, HEADS, HEAD, FF, WINDOW = 64, 16, 2, 8, 24, 6
STATE, CONV, RANK = 4, 4, 2
Keys = dict[str, tuple[str, Any]]


@dataclass(frozen=True)
class Drawn:
    """A tensor with weights from a seeded stream. The weights have a given distribution, or are the
    weights of a norm, which are near one."""

    name: str
    ne: tuple[int, ...]
    sigma: float | None = None  # None: a norm

    def row(self, seed: int) -> TensorRow:
        bits, n = stream(seed, self.name), int(np.prod(self.ne))
        if self.sigma is None:
            return self.name, self.ne, "F32", [around_one(bits, n).astype("<f4").tobytes()]
        return self.name, self.ne, "F32", tensor_bytes(bits, "F32", n, self.sigma)


def matrix(name: str, inputs: int, outputs: int) -> Drawn:
    return Drawn(f"{name}.weight", (inputs, outputs), inputs**-0.5)


def norm(name: str, size: int = WIDTH) -> Drawn:
    return Drawn(f"{name}.weight", (size,))


def write_window(path: Path, seed: int = 1) -> None:
    """Write a gemma3 model. One layer has a window of WINDOW positions, and the next has full
    attention."""
    arch = "gemma3"
    keys = common(arch) | {
        f"{arch}.feed_forward_length": ("U32", FF),
        f"{arch}.attention.head_count": ("U32", HEADS),
        f"{arch}.attention.head_count_kv": ("U32", 1),
        f"{arch}.attention.sliding_window": ("U32", WINDOW),
        f"{arch}.attention.sliding_window_pattern": ("U32", 2),
        f"{arch}.rope.freq_base": ("F32", 1000000.0),
    }
    layers = [row for layer in (0, 1) for row in gemma3_layer(seed, layer)]
    write_gguf(path, keys, [*(t.row(seed) for t in ends()), *layers])


def gemma3_layer(seed: int, layer: int) -> Iterator[TensorRow]:
    block = f"blk.{layer}."
    drawn = [
        norm(block + "attn_norm"),
        norm(block + "attn_q_norm", HEAD),
        norm(block + "attn_k_norm", HEAD),
        norm(block + "post_attention_norm"),
        norm(block + "ffn_norm"),
        matrix(block + "attn_q", WIDTH, HEADS * HEAD),
        matrix(block + "attn_k", WIDTH, HEAD),
        matrix(block + "attn_v", WIDTH, HEAD),
        matrix(block + "attn_output", HEADS * HEAD, WIDTH),
        matrix(block + "ffn_gate", WIDTH, FF),
        matrix(block + "ffn_up", WIDTH, FF),
        matrix(block + "ffn_down", FF, WIDTH),
    ]
    yield from (t.row(seed) for t in drawn)
    # ggml's GELU is a table of F16 numbers, so an input that tips changes the result by 2^-11 of
    # itself, which would hide the effect of a split. A part of size 1/1024 changes logits by only
    # 2^-21.
    small = around_one(stream(seed, block + "post_ffw_norm"), WIDTH) / 1024
    yield block + "post_ffw_norm.weight", (WIDTH,), "F32", [small.astype("<f4").tobytes()]


def write_recurrent(path: Path, seed: int = 1) -> None:
    """Write a mamba model with two layers. Each layer keeps the last inputs of its convolution and
    a state for every sequence."""
    arch, inner = "mamba", 2 * WIDTH
    keys = common(arch) | {
        f"{arch}.ssm.conv_kernel": ("U32", CONV),
        f"{arch}.ssm.inner_size": ("U32", inner),
        f"{arch}.ssm.state_size": ("U32", STATE),
        f"{arch}.ssm.time_step_rank": ("U32", RANK),
    }
    layers = [row for layer in (0, 1) for row in mamba_layer(seed, layer, inner)]
    write_gguf(path, keys, [*(t.row(seed) for t in ends()), *layers])


def mamba_layer(seed: int, layer: int, inner: int) -> Iterator[TensorRow]:
    block = f"blk.{layer}."
    drawn = [
        norm(block + "attn_norm"),
        matrix(block + "ssm_in", WIDTH, 2 * inner),
        Drawn(block + "ssm_conv1d.weight", (CONV, inner), CONV**-0.5),
        Drawn(block + "ssm_conv1d.bias", (inner,), 0.1),
        matrix(block + "ssm_x", inner, RANK + 2 * STATE),
        matrix(block + "ssm_dt", RANK, inner),
        Drawn(block + "ssm_dt.bias", (inner,), 0.5),
        Drawn(block + "ssm_d", (inner,)),
        matrix(block + "ssm_out", inner, WIDTH),
    ]
    yield from (t.row(seed) for t in drawn)
    # negative, so that states do not grow
    decay = -around_one(stream(seed, block + "ssm_a"), STATE * inner)
    yield block + "ssm_a", (STATE, inner), "F32", [decay.astype("<f4").tobytes()]


def write_hybrid(path: Path, seed: int = 1) -> None:
    """Write an lfm2 model with two layers. The first keeps the last inputs of its convolution for
    every sequence, and the second has full attention."""
    arch = "lfm2"
    keys = common(arch) | {
        f"{arch}.feed_forward_length": ("U32", FF),
        f"{arch}.attention.head_count": ("U32", HEADS),
        f"{arch}.attention.head_count_kv": ("ARR[I32]", [0, 1]),
        f"{arch}.shortconv.l_cache": ("U32", CONV),
        f"{arch}.rope.freq_base": ("F32", 10000.0),
    }
    drawn = [*ends(norm_name="token_embd_norm"), *conv_layer(0), *lfm2_attention(1)]
    write_gguf(path, keys, (t.row(seed) for t in drawn))


def conv_layer(layer: int) -> Iterator[Drawn]:
    block = f"blk.{layer}."
    yield matrix(block + "shortconv.in_proj", WIDTH, 3 * WIDTH)
    yield Drawn(block + "shortconv.conv.weight", (CONV, WIDTH), CONV**-0.5)
    yield matrix(block + "shortconv.out_proj", WIDTH, WIDTH)
    yield from lfm2_rest(block)


def lfm2_attention(layer: int) -> Iterator[Drawn]:
    block = f"blk.{layer}."
    yield norm(block + "attn_q_norm", HEAD)
    yield norm(block + "attn_k_norm", HEAD)
    yield matrix(block + "attn_q", WIDTH, WIDTH)
    yield matrix(block + "attn_k", WIDTH, HEAD)
    yield matrix(block + "attn_v", WIDTH, HEAD)
    yield matrix(block + "attn_output", WIDTH, WIDTH)
    yield from lfm2_rest(block)


def lfm2_rest(block: str) -> Iterator[Drawn]:
    yield norm(block + "attn_norm")
    yield norm(block + "ffn_norm")
    yield matrix(block + "ffn_gate", WIDTH, FF)
    yield matrix(block + "ffn_up", WIDTH, FF)
    yield matrix(block + "ffn_down", FF, WIDTH)


def common(arch: str) -> Keys:
    return {
        "general.architecture": ("STR", arch),
        "general.name": ("STR", f"lockstep small {arch}"),
        f"{arch}.context_length": ("U32", 512),
        f"{arch}.embedding_length": ("U32", WIDTH),
        f"{arch}.block_count": ("U32", 2),
        f"{arch}.feed_forward_length": ("U32", 0),
        f"{arch}.attention.head_count": ("U32", 0),
        f"{arch}.attention.layer_norm_rms_epsilon": ("F32", 1e-5),
        f"{arch}.vocab_size": ("U32", N_VOCAB),
        **vocabulary(),
    }


def vocabulary() -> Keys:
    """Return a vocabulary with a text for every token, which llama.cpp needs to print its
    batches."""
    return {
        "tokenizer.ggml.model": ("STR", "llama"),
        "tokenizer.ggml.tokens": ("ARR[STR]", [f"t{token}" for token in range(N_VOCAB)]),
        "tokenizer.ggml.scores": ("ARR[F32]", [0.0] * N_VOCAB),
        "tokenizer.ggml.token_type": ("ARR[I32]", [1] * N_VOCAB),
    }


def ends(norm_name: str = "output_norm") -> list[Drawn]:
    return [
        Drawn("token_embd.weight", (WIDTH, N_VOCAB), 1.0),
        norm(norm_name),
        matrix("output", WIDTH, N_VOCAB),
    ]


def write_attention(path: Path, seed: int = 1, yarn_factor: float = 0.0) -> None:
    """Write a llama model with two layers of full attention."""
    recipe = LlamaRecipe(
        seed=seed,
        n_vocab=N_VOCAB,
        n_embd=WIDTH,
        n_head=HEADS,
        n_head_kv=1,
        n_ff=FF,
        rope_yarn_factor=yarn_factor,
        vocabulary=False,
    )
    write_gguf(path, metadata(recipe) | vocabulary(), tensors(recipe))


def write_yarn(path: Path, seed: int = 1) -> None:
    """Write the model of `write_attention` with YaRN, which multiplies rotated keys by a factor."""
    write_attention(path, seed, yarn_factor=4.0)


SMALL = {
    "attention": write_attention,
    "window": write_window,
    "recurrent": write_recurrent,
    "hybrid": write_hybrid,
    "yarn": write_yarn,
}
