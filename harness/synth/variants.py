"""A table of metadata from which llama.cpp builds a tiny model of every architecture.

One set of keys serves nearly all architectures, because llama.cpp ignores the keys that an
architecture does not read. Special requirements of an architecture are in `variant_extras.py`. The
keys are those of src/llama-arch.cpp of llama-cpp-python 0.3.36. The file of an architecture in
src/models shows which keys it reads.
"""

from dataclasses import dataclass
from typing import Any

Typed = tuple[str, Any]
Keys = dict[str, Typed]  # a key that begins with a dot belongs to the architecture

# With at most 256 positions, no run reaches positions that a byte or a bfloat16 cannot hold, or a
# second block of 256 cells. More than needed would make the runs of every architecture longer.
N_CTX_TRAIN = 320


def u32(*values: int) -> Typed:
    return ("U32", values[0]) if len(values) == 1 else ("ARR[U32]", list(values))


def i32s(*values: int) -> Typed:
    return ("ARR[I32]", list(values))


def f32(value: float) -> Typed:
    return ("F32", value)


def yes(value: bool) -> Typed:
    return ("BOOL", value)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The basic sizes of a model, with ggml's names. All other sizes follow from them."""

    n_layer: int = 2
    n_embd: int = 64
    n_head: int = 2
    n_head_kv: int = 0  # 0: as many as heads
    n_ff: int = 96
    n_vocab: int = 128
    n_expert: int = 4  # for variants with experts
    n_expert_used: int = 2

    @property
    def head(self) -> int:
        return self.n_embd // self.n_head

    @property
    def kv_heads(self) -> int:
        return self.n_head_kv or self.n_head


def per_layer(s: Sizes, value: int, *, without: int = 1) -> Typed:
    """Return one value for each layer, and zero for layer `without`, which is recurrent."""
    return u32(*(0 if il == without else value for il in range(s.n_layer)))


def alternating(s: Sizes, first: int = 0) -> Typed:
    return u32(*((il + first) % 2 for il in range(s.n_layer)))


def common(s: Sizes) -> Keys:
    """Return keys that most architectures read. All other architectures ignore these keys."""
    return {
        ".vocab_size": u32(s.n_vocab),
        ".context_length": u32(N_CTX_TRAIN),
        ".embedding_length": u32(s.n_embd),
        ".features_length": u32(s.n_embd),
        ".block_count": u32(s.n_layer),
        ".leading_dense_block_count": u32(1),
        ".feed_forward_length": u32(s.n_ff),
        ".use_parallel_residual": yes(False),
        ".logit_scale": f32(0.5),
        ".residual_scale": f32(0.75),
        ".full_attention_interval": u32(2),
        ".hidden_activation": ("STR", "gelu"),
        **attention(s),
        **recurrent(s),
        **special(s),
    }


def attention(s: Sizes) -> Keys:
    quarter = max(s.head // 8, 1)  # sections are counted in pairs
    return {
        ".attention.head_count": u32(s.n_head),
        ".attention.head_count_kv": u32(s.kv_heads),
        ".attention.max_alibi_bias": f32(8.0),
        ".attention.clamp_kqv": f32(1.0),
        ".attention.layer_norm_epsilon": f32(1e-5),
        ".attention.layer_norm_rms_epsilon": f32(1e-5),
        ".attention.group_norm_epsilon": f32(1e-5),
        ".attention.group_norm_groups": u32(4),
        ".attention.q_lora_rank": u32(32),
        ".attention.kv_lora_rank": u32(32),
        ".attention.relative_buckets_count": u32(8),
        ".attention.sliding_window": u32(16),
        ".attention.sliding_window_pattern": u32(2),
        ".attention.indexer.head_count": u32(64),
        ".attention.indexer.key_length": u32(128),
        ".attention.indexer.top_k": u32(8),
        ".attention.indexer.block_size": u32(4),
        ".attention.indexer.kpool": u32(4),
        ".attention.indexer.kpool_select_tail": yes(True),
        ".attention.indexer.local_blocks": u32(1),
        ".rope.dimension_sections": i32s(quarter, quarter, quarter, quarter),
    }


def recurrent(s: Sizes) -> Keys:
    return {
        ".ssm.inner_size": u32(2 * s.n_embd),
        ".ssm.conv_kernel": u32(4),
        ".ssm.state_size": u32(16),
        ".ssm.time_step_rank": u32(s.n_head),
        ".ssm.group_count": u32(2),
        ".kda.head_dim": u32(32),
        ".kda.safe_gate": yes(True),
        ".kda.gate_lower_bound": f32(-5.0),
        ".wkv.head_size": u32(s.head),
        ".time_mix_extra_dim": u32(16),
        ".time_decay_extra_dim": u32(16),
        ".attention.decay_lora_rank": u32(8),
        ".attention.iclr_lora_rank": u32(8),
        ".attention.value_residual_mix_lora_rank": u32(8),
        ".attention.gate_lora_rank": u32(8),
        ".shortconv.l_cache": u32(3),
    }


def special(s: Sizes) -> Keys:
    """Return keys that only one or two architectures read."""
    return {
        ".posnet.embedding_length": u32(s.n_embd),
        ".posnet.block_count": u32(s.n_layer),
        ".convnext.embedding_length": u32(s.n_embd),
        ".convnext.block_count": u32(s.n_layer),
        "xielu.alpha_n": f32(1.0),
        "xielu.alpha_p": f32(1.0),
        "xielu.beta": f32(1.0),
        "xielu.eps": f32(1e-7),
        ".attn_res.block_size": u32(12),
        ".activation.situ_beta": f32(4.0),
        ".activation.situ_linear_beta": f32(25.0),
    }


def experts(s: Sizes) -> Keys:
    return {
        ".expert_feed_forward_length": u32(s.n_ff),
        ".expert_shared_feed_forward_length": u32(s.n_ff // 2),
        ".expert_chunk_feed_forward_length": u32(s.n_ff // 2),
        ".expert_latent_length": u32(s.n_ff),
        ".moe_latent_size": u32(s.n_embd // 2),
        ".interleave_moe_layer_step": u32(2),
        ".moe_every_n_layers": u32(2),
        ".expert_count": u32(s.n_expert),
        ".expert_used_count": u32(s.n_expert_used),
        ".expert_shared_count": u32(1),
        ".expert_gating_func": u32(2),
        ".expert_group_scale": f32(1.0),
        ".experts_per_group": u32(1),
    }
