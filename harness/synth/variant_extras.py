"""Keys of single architectures in addition to `variants.common`, with their layouts.

Source: `load_arch_hparams` and `load_arch_tensors` of each file in src/models of llama.cpp, as in
llama-cpp-python 0.3.36.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from lockstep.harness.synth.variants import Keys, Sizes, alternating, f32, i32s, per_layer, u32, yes

PLE_HEADS, PLE_NGRAM = 4, 3  # the number of heads is (PLE_NGRAM - 1) times the heads per n-gram

_GROUPED = (
    "mistral3 qwen2 qwen2moe qwen2vl qwen3moe qwen3vl qwen3vlmoe gemma2 phi3 phimoe granite "
    "granitemoe exaone4 exaone-moe ernie4_5 ernie4_5-moe smollm3 glm4 glm4moe seed_oss "
    "starcoder2 internlm2 hunyuan-dense hunyuan-moe lfm2 lfm2moe dream cohere2 nemotron arcee "
    "apertus grovemoe minimax-m2 dbrx grok deci jamba gpt-oss muse-glimmer afmoe rnd1 chatglm "
    "bitnet exaone olmo2 command-r bailingmoe stablelm minicpm falcon-h1 granitehybrid "
    "smallthinker codeshell cohere2moe paddleocr qwen3next qwen35 qwen35moe"
)
SIZES: Mapping[str, Sizes] = MappingProxyType(
    {
        # other numbers, because with as many KV heads as heads, or one, every mapping would be
        # right
        **{name: Sizes(n_head=4, n_head_kv=2) for name in _GROUPED.split()},
        # quantised caches need heads of 32
        "llama": Sizes(n_embd=128, n_head=4, n_head_kv=2),
        "llama4": Sizes(n_layer=4, n_head=4, n_head_kv=2),  # every fourth layer has no rope
        "gemma3n": Sizes(n_layer=22, n_embd=32, n_head=1, n_ff=48),  # layers from 20 on share keys
        "gemma4": Sizes(n_layer=5, n_head=4, n_head_kv=2),
        "deepseek4": Sizes(n_layer=4, n_embd=128, n_head=4),
        # other engines assume these and do not read the keys: heads of 128, one layer in six
        # without a window, and an FFN of four times the width
        "qwen3": Sizes(n_embd=256, n_head=2, n_head_kv=1),
        "gemma3": Sizes(n_layer=6, n_head=4, n_head_kv=2),
        "gpt2": Sizes(n_ff=256),
        "deepseek2": Sizes(n_head=4, n_head_kv=1),
        # two heads in each of two groups, so that a wrong mapping to groups shows
        "mamba2": Sizes(n_head=4),
        **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), Sizes(n_layer=3, n_head=4, n_head_kv=2)),
        "qwen3tts": Sizes(n_vocab=3072),  # the codec's head has a fixed size
        "hrm_text": Sizes(n_layer=6),  # one layer a stack, 2 high cycles of 2 low ones and a high
        "chameleon": Sizes(n_vocab=10240),
        # with AVX-512, ggml's RWKV_WKV7 requires heads of whole 64s (harness/known)
        "rwkv7": Sizes(n_embd=128),
        "arwkv7": Sizes(n_embd=128),
        **{
            name: Sizes(n_head=1)
            for name in (
                *("deepseek32", "glm-dsa", "dots3note", "kimi-linear", "bailingmoe3"),
                *("kimi-k3", "glm5-next", "mistral4", "hy_v4"),
            )
        },
    }
)


def mla(s: Sizes) -> Keys:
    """Return keys of latent attention: 32 + 8 elements in the cache, heads of 24, values of 16."""
    return {
        ".attention.key_length": u32(40),
        ".attention.value_length": u32(32),
        ".rope.dimension_count": u32(8),
        ".attention.key_length_mla": u32(24),
        ".attention.value_length_mla": u32(16),
    }


def heads_by_layer(s: Sizes) -> Keys:
    heads = per_layer(s, s.n_head)
    return {".attention.head_count": heads, ".attention.head_count_kv": heads}


def swa_by_layer(s: Sizes) -> Keys:
    return {".attention.sliding_window_pattern": alternating(s)}


def hyper(s: Sizes) -> Keys:
    return {
        ".hyper_connection.count": u32(4),
        ".hyper_connection.sinkhorn_iterations": u32(2),
        ".hyper_connection.epsilon": f32(1e-6),
        ".hyper_connection.low_rank": u32(8),
        ".hyper_connection.magnitude": f32(2.0),
    }


def ple(s: Sizes) -> Keys:
    """Return keys for embeddings of n-grams, whose history is in the recurrent cache of layer 0."""
    return {
        ".ple.layers": ("ARR[U32]", [0]),
        ".ple.ngram_size": u32(PLE_NGRAM),
        ".ple.heads_per_ngram": u32(PLE_HEADS // (PLE_NGRAM - 1)),
        ".ple.conv_kernel": u32(4),
        ".ple.eos_token_id": u32(0),
        ".embedding_length_per_layer_input": u32(s.n_embd // PLE_HEADS),
        ".ple.layer_multipliers": ("ARR[U64]", [1, 3, 5]),
        ".ple.head_offsets": ("ARR[U64]", [h * s.n_vocab for h in range(PLE_HEADS)]),
        ".ple.head_vocab_sizes": ("ARR[U64]", [s.n_vocab] * PLE_HEADS),
    }


def indexer_by_layer(s: Sizes) -> Keys:
    return {".attention.indexer.types": alternating(s, 1)}


def scaled_experts(s: Sizes) -> Keys:
    return {".expert_weights_scale": f32(1.5), ".expert_weights_norm": yes(True)}


def bert(s: Sizes) -> Keys:
    return {
        "tokenizer.ggml.token_type_count": u32(2),
        ".attention.causal": yes(False),
        ".pooling_type": u32(0),
    }


def heads(s: Sizes) -> Keys:
    """Return keys of real files. Without them engines assume head size 128 or 256, and no base."""
    return {
        ".attention.key_length": u32(s.head),
        ".attention.value_length": u32(s.head),
        ".rope.freq_base": f32(1000000.0),
    }


def gemma2(s: Sizes) -> Keys:
    """Return keys for heads whose size is not width / heads, and for soft caps near the scores."""
    return {
        ".attention.key_length": u32(2 * s.head),
        ".attention.value_length": u32(2 * s.head),
        ".attn_logit_softcapping": f32(5.0),
        ".final_logit_softcapping": f32(3.0),
    }


def gpt_oss(s: Sizes) -> Keys:
    """Return keys for heads whose size is not width / heads, and for a short training context."""
    return {
        ".attention.key_length": u32(2 * s.head),
        ".attention.value_length": u32(2 * s.head),
        ".rope.freq_base": f32(150000.0),
        ".rope.scaling.type": ("STR", "yarn"),
        ".rope.scaling.factor": f32(4.0),
        ".rope.scaling.original_context_length": u32(64),
    }


def gemma4(s: Sizes) -> Keys:
    return {
        ".embedding_length_per_layer_input": u32(s.n_embd // 2),
        ".attention.shared_kv_layers": u32(0),
        ".attention.key_length_swa": u32(s.head),
        ".attention.value_length_swa": u32(s.head),
        ".rope.freq_base_swa": f32(10000.0),
        ".attention.sliding_window_pattern": i32s(*(int(il % 5 != 4) for il in range(s.n_layer))),
    }


def deepseek4(s: Sizes) -> Keys:
    return {
        **hyper(s),
        **scaled_experts(s),
        ".attention.head_count_kv": u32(1),
        ".attention.key_length": u32(s.head),
        ".attention.value_length": u32(s.head),
        ".rope.dimension_count": u32(s.head // 2),
        ".attention.output_group_count": u32(4),
        ".attention.output_lora_rank": u32(16),
        ".attention.compress_ratios": u32(0, 0, 4, 128),
        ".attention.compress_rope_freq_base": f32(160000.0),
        ".hash_layer_count": u32(0),
        ".swiglu_clamp_exp": f32(10.0),
        ".expert_gating_func": u32(4),
    }


def dots3note(s: Sizes) -> Keys:
    return {
        **mla(s),
        **swa_by_layer(s),
        **indexer_by_layer(s),
        ".attention.kv_lora_rank_swa": u32(32),
        ".attention.key_length_swa": u32(40),
        ".attention.value_length_swa": u32(32),
        ".attention.key_length_mla_swa": u32(24),
        ".attention.value_length_mla_swa": u32(16),
        ".rope.freq_base_swa": f32(10000.0),
    }


def glm5_next(s: Sizes) -> Keys:
    return {
        **mla(s),
        **hyper(s),
        **ple(s),
        ".attention.key_length": u32(32),
        ".rope.dimension_count": u32(0),
        ".attention.head_count_kv": per_layer(s, s.n_head),
        ".attention.compress_ratios": u32(*[4] * s.n_layer),
    }


def qwen4exp(s: Sizes) -> Keys:
    return {
        **hyper(s),
        **ple(s),
        ".attention.compress_ratios": u32(*[4] * s.n_layer),
        ".attention.indexer.key_length": u32(s.head),
        **gated_delta(s),
    }


def gated_delta(s: Sizes) -> Keys:
    return {".ssm.inner_size": u32(32), ".ssm.state_size": u32(16), ".ssm.time_step_rank": u32(2)}


def hy_v4(s: Sizes) -> Keys:
    return {
        **mla(s),
        **hyper(s),
        **scaled_experts(s),
        **indexer_by_layer(s),
        ".swiglu_clamp_exp": f32(10.0),
    }


def bailingmoe3(s: Sizes) -> Keys:
    return {
        **mla(s),
        **heads_by_layer(s),
        ".rope.dimension_sections": i32s(1, 1, 2, 0),
        ".swiglu_clamp_exp": ("ARR[F32]", [0.0, 4.0]),
        ".swiglu_clamp_shexp": ("ARR[F32]", [0.0, 5.0]),
    }


def hrm_text(s: Sizes) -> Keys:
    return {".hrm.layers_per_stack": u32(1), ".hrm.h_cycles": u32(2), ".hrm.l_cycles": u32(2)}


def nemotron_h(s: Sizes) -> Keys:
    """Return keys for a recurrent layer, an attention layer and a feed-forward layer."""
    return {
        **heads_by_layer(s),
        ".feed_forward_length": u32(*(0 if il <= 1 else s.n_ff for il in range(s.n_layer))),
    }


def granite_switch(s: Sizes) -> Keys:
    """Return keys for two adapters, which tokens 3 and 4 switch on."""
    return {
        ".adapters.count": u32(2),
        ".adapters.lora_rank": u32(4),
        ".adapters.token_ids_activate": i32s(3, 4),
        ".adapters.token_ids_substitute": i32s(5, 6),
    }


EXTRAS: Mapping[str, Callable[[Sizes], Keys]] = MappingProxyType(
    {
        **dict.fromkeys(("deepseek32", "glm-dsa", "mistral4"), mla),
        "deepseek2": lambda s: {**mla(s), **scaled_experts(s)},
        **dict.fromkeys(("kimi-linear", "kimi-k3"), lambda s: {**mla(s), **heads_by_layer(s)}),
        **dict.fromkeys(("jamba", "granitehybrid", "lfm2", "lfm2moe"), heads_by_layer),
        **dict.fromkeys(
            ("cohere2moe", "mimo2", "step35", "spark2_5", "muse-glimmer", "granite_swa"),
            swa_by_layer,
        ),
        **dict.fromkeys(
            (
                *("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert"),
                *("jina-bert-v2", "jina-bert-v3", "eurobert"),
            ),
            bert,
        ),
        **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), nemotron_h),
        **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), gated_delta),
        "plm": lambda s: {
            ".attention.key_length": u32(24),
            ".attention.value_length": u32(16),
            ".rope.dimension_count": u32(8),
        },
        "plamo2": lambda s: {**heads_by_layer(s), ".ssm.group_count": u32(0)},
        "maple": lambda s: {**swa_by_layer(s), ".swiglu_clamp_exp": f32(7.0)},
        "minimax-m3": lambda s: {
            ".rope.dimension_count": u32(16),
            ".attention.indexer.head_count": u32(s.n_head),
        },
        **dict.fromkeys(("qwen3", "qwen3moe"), heads),
        "gemma3": lambda s: {**heads(s), ".attention.sliding_window_pattern": u32(6)},
        "gpt2": lambda s: {".context_length": u32(1024)},
        "qwen2": lambda s: {".rope.freq_base": f32(1000000.0)},
        "gemma2": gemma2,
        "gemma4": gemma4,
        "gpt-oss": gpt_oss,
        "graniteswitch": granite_switch,
        **dict.fromkeys(("rwkv6qwen2", "arwkv7"), lambda s: {".token_shift_count": u32(1)}),
        "deepseek4": deepseek4,
        "dots3note": dots3note,
        "glm5-next": glm5_next,
        "qwen4exp": qwen4exp,
        "hy_v4": hy_v4,
        "bailingmoe3": bailingmoe3,
        "hrm_text": hrm_text,
    }
)

# tensors that llama.cpp would read but real files lack; some of them crash it (harness/known)
LEFT_OUT: Mapping[str, str] = MappingProxyType(
    {
        "rwkv6qwen2": r"\.time_mix_first\.",
        **dict.fromkeys(
            ("qwen3", "qwen3moe", "gemma2", "gemma3"), r"scale$|attn_[qkv]\.bias|^cls\."
        ),
        "qwen2": r"scale$|^output\.bias",
        **dict.fromkeys(("gpt2", "gpt-oss", "deepseek2", "mamba"), r"scale$"),
        "bert": r"scale$|^cls\.",
        "lfm2": r"scale$|attn_[qkv]\.bias|^dense_2",
        "phi3": r"scale$|attn_[qkv]\.bias|^rope_factors",
    }
)
# real files have one matrix for queries, keys and values, although llama.cpp also accepts three
FUSED = ("phi3",)
# real files have two stacks of experts, although llama.cpp also accepts one
SPLIT = ("deepseek2",)
# The keys that our engine knows, for architectures with a graph of ours. It refuses files with
# other keys, because their effect is unknown.
_SIZES = (
    *(".vocab_size", ".context_length", ".embedding_length", ".block_count"),
    *(".feed_forward_length", ".attention.head_count", ".attention.head_count_kv"),
)
_RMS = (*_SIZES, ".attention.layer_norm_rms_epsilon")
_HEADS = (".attention.key_length", ".attention.value_length")
_EXPERTS = (".expert_count", ".expert_used_count", ".expert_feed_forward_length")
READ: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "bert": (
            *(*_SIZES, ".attention.layer_norm_epsilon", ".attention.causal", ".pooling_type"),
            "tokenizer.ggml.token_type_count",
        ),
        "phi3": (*_RMS, ".attention.sliding_window"),
        "qwen2": (*_RMS, ".rope.freq_base"),
        "qwen3": (*_RMS, *_HEADS, ".rope.freq_base"),
        "qwen3moe": (*_RMS, *_HEADS, *_EXPERTS, ".rope.freq_base"),
        "deepseek2": (
            *(*_RMS, *_HEADS, ".attention.key_length_mla", ".attention.value_length_mla"),
            *(".attention.q_lora_rank", ".attention.kv_lora_rank", ".rope.dimension_count"),
            *(*_EXPERTS, ".expert_shared_count", ".expert_weights_scale", ".expert_weights_norm"),
            *(".expert_gating_func", ".leading_dense_block_count"),
        ),
        "gemma2": (
            *(*_RMS, *_HEADS, ".attention.sliding_window"),
            *(".attn_logit_softcapping", ".final_logit_softcapping"),
        ),
        "gemma3": (
            *(*_RMS, *_HEADS, ".attention.sliding_window", ".attention.sliding_window_pattern"),
            ".rope.freq_base",
        ),
        "gpt-oss": (
            *(*_RMS, *_HEADS, *_EXPERTS, ".attention.sliding_window", ".rope.freq_base"),
            *(".rope.scaling.type", ".rope.scaling.factor"),
            ".rope.scaling.original_context_length",
        ),
        "gpt2": (*_SIZES, ".attention.layer_norm_epsilon"),
        "lfm2": (*_RMS, ".shortconv.l_cache"),
        "mamba": (
            *(*_RMS, ".ssm.inner_size", ".ssm.conv_kernel", ".ssm.state_size"),
            ".ssm.time_step_rank",
        ),
    }
)

# forms of each architecture: without experts, with experts, or both
_DENSE_ONLY = (
    "clip deci falcon gpt2 gptj gptneox mpt baichuan starcoder bert modern-bert nomic-bert "
    "neo-bert jina-bert-v2 jina-bert-v3 eurobert bloom stablelm qwen qwen2 qwen2vl qwen3 qwen3vl "
    "qwen35 phi2 phi3 plamo plamo2 plamo3 codeshell orion internlm2 minicpm3 gemma gemma2 gemma3 "
    "gemma3n gemma4-assistant gemma-embedding starcoder2 mamba mamba2 falcon-h1 xverse command-r "
    "cohere2 olmo olmo2 muse-glimmer openelm chatglm glm4 bitnet t5 t5encoder jais jais2 nemotron "
    "nemotron_h exaone exaone4 rwkv6 rwkv6qwen2 rwkv7 arwkv7 graniteswitch chameleon "
    "wavtokenizer-dec plm arcee "
    "ernie4_5 hunyuan-dense hunyuan_vl smollm3 lfm2 dream llada seed_oss apertus hrm_text cogvlm "
    "pangu-embedded eagle3 dflash spark2_5 maincoder talkie nanbeige qwen3tts pockettts paddleocr"
)
_MOE_ONLY = (
    "llama4 grok nomic-bert-moe qwen2moe qwen3moe qwen3next qwen3vlmoe qwen35moe qwen4exp phimoe "
    "maple cohere2moe dbrx olmoe arctic deepseek deepseek2 deepseek2-ocr deepseek32 deepseek4 "
    "glm4moe glm-dsa nemotron_h_moe exaone-moe bailingmoe bailingmoe2 bailingmoe3 dots1 dots3note "
    "afmoe laguna ernie4_5-moe hunyuan-moe hy_v3 hy_v4 gpt-oss lfm2moe smallthinker llada-moe "
    "grovemoe minimax-01 minimax-m2 minimax-m3 rnd1 mistral4 mimo2 step35 kimi-linear "
    "kimi-k3 glm5-next mellum"
)
_BOTH = (
    "llama refact minicpm gemma4 jamba granite granitemoe granitehybrid granite_swa "
    "mistral3 llama-embed"
)
DENSE_ONLY, MOE_ONLY, BOTH = (tuple(names.split()) for names in (_DENSE_ONLY, _MOE_ONLY, _BOTH))
