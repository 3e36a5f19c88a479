"""More wrong conversions: of tokenizers, Gemma's norms and windows, experts, and merged
matrices."""

import numpy as np

from lockstep.harness.originals.findings import DifferenceKind as Kind
from tests.harness.originals import checkpoints as ck
from tests.harness.originals.conversions import CONTROL, NORMAL, Conversion, pairs
from tests.harness.originals.wrong_of_llama import (
    EMBD,
    F32,
    HEAD,
    LLAMA,
    OUT,
    UP,
    Q,
    W,
    WrongConversion,
    copy,
)

TOKENIZER = "tokenizer.ggml"


def turn_expert(values: F32) -> F32:
    values = values.copy()
    values[1] = values[1].T.reshape(values[1].shape)
    return values


def cut_tokens(c: Conversion) -> None:
    for name in ("tokens", "token_type"):
        kind, values = c.keys[f"{TOKENIZER}.{name}"]
        c.keys[f"{TOKENIZER}.{name}"] = (kind, values[:-1])


def swap_tokens(c: Conversion) -> None:
    tokens = c.keys[f"{TOKENIZER}.tokens"][1]
    c.edit("tokens", 70, tokens[71])
    c.edit("tokens", 71, tokens[70])


TOKENS = (
    W(
        "tokens-missing",
        "llama",
        lambda c: c.drop(f"{TOKENIZER}.tokens"),
        (f"{TOKENIZER}.tokens",),
        Kind.missing,
    ),
    W(
        "add-bos-missing",
        "llama",
        lambda c: c.drop(f"{TOKENIZER}.add_bos_token"),
        (f"{TOKENIZER}.add_bos_token",),
    ),
    W(
        "pre-tokenizer-missing",
        "llama",
        lambda c: c.drop(f"{TOKENIZER}.pre"),
        (f"{TOKENIZER}.pre",),
    ),
    W(
        "pre-tokenizer",
        "llama",
        lambda c: c.set(f"{TOKENIZER}.pre", "qwen2"),
        (f"{TOKENIZER}.pre",),
    ),
    W(
        "bos",
        "llama",
        lambda c: c.set(f"{TOKENIZER}.bos_token_id", 1),
        (f"{TOKENIZER}.bos_token_id",),
    ),
    W(
        "eos-missing",
        "llama",
        lambda c: c.drop(f"{TOKENIZER}.eos_token_id"),
        (f"{TOKENIZER}.eos_token_id",),
    ),
    W(
        "add-bos",
        "llama",
        lambda c: c.set(f"{TOKENIZER}.add_bos_token", False),
        (f"{TOKENIZER}.add_bos_token",),
    ),
    W(
        "end-of-turn",
        "llama",
        lambda c: c.keys.update({f"{TOKENIZER}.eot_token_id": ("U32", 5)}),
        (f"{TOKENIZER}.eot_token_id",),
        Kind.ordinary,
    ),
    W(
        "merges-cut",
        "llama",
        lambda c: c.set(f"{TOKENIZER}.merges", c.keys[f"{TOKENIZER}.merges"][1][:-2]),
        (f"{TOKENIZER}.merges",),
        detail={"merge": 8},
    ),
    W(
        "merges-out-of-order",
        "llama",
        lambda c: c.set(f"{TOKENIZER}.merges", c.keys[f"{TOKENIZER}.merges"][1][::-1]),
        (f"{TOKENIZER}.merges",),
        detail={"merge": 0},
    ),
    W("added-token-normal", "llama", lambda c: c.edit("token_type", 266, NORMAL), ("token 266",)),
    W("user-token-control", "llama", lambda c: c.edit("token_type", 268, CONTROL), ("token 268",)),
    W(
        "types-missing",
        "llama",
        lambda c: c.drop(f"{TOKENIZER}.token_type"),
        (f"{TOKENIZER}.token_type",),
    ),
    W("tokens-swapped", "llama", swap_tokens, ("token 70", "token 71")),
    W("tokens-cut", "llama", cut_tokens, (EMBD, HEAD), Kind.shape),
    W("padding-normal", "llama", lambda c: c.edit("token_type", 270, NORMAL), ("token 270",)),
    W(
        "template-cut",
        "llama",
        lambda c: c.set("tokenizer.chat_template", ck.TEMPLATE[:-6]),
        ("tokenizer.chat_template",),
        detail={"character": len(ck.TEMPLATE) - 6},
    ),
    W(
        "template-missing",
        "llama",
        lambda c: c.drop("tokenizer.chat_template"),
        ("tokenizer.chat_template",),
    ),
    W(
        "lowercase",
        "bert",
        lambda c: c.keys.update({f"{TOKENIZER}.normalizer.lowercase": ("BOOL", False)}),
        (f"{TOKENIZER}.normalizer.lowercase", f"{TOKENIZER}.normalizer.strip_accents"),
    ),
    W("mark-of-wordpiece", "bert", lambda c: c.edit("tokens", 5, "##w4"), ("token 5",)),
)
GEMMAS = (
    W(
        "one-forgotten",
        "gemma2",
        lambda c: c.change("blk.1.ffn_norm.weight", lambda a: a - np.float32(1)),
        ("blk.1.ffn_norm.weight",),
        stored="F16",
    ),
    W(
        "one-twice",
        "gemma2",
        lambda c: c.change("output_norm.weight", lambda a: a + np.float32(1)),
        ("output_norm.weight",),
    ),
    W(
        "norms-swapped",
        "gemma2",
        lambda c: c.swap("blk.0.post_attention_norm.weight", "blk.0.post_ffw_norm.weight"),
        ("blk.0.post_attention_norm.weight", "blk.0.post_ffw_norm.weight"),
        Kind.holds,
    ),
    W(
        "window-missing",
        "gemma2",
        lambda c: c.drop("attention.sliding_window"),
        ("gemma2.attention.sliding_window",),
    ),
    W(
        "window",
        "gemma3",
        lambda c: c.set("attention.sliding_window", 31),
        ("gemma3.attention.sliding_window",),
    ),
    W(
        "cap-missing",
        "gemma2",
        lambda c: c.drop("attn_logit_softcapping"),
        ("gemma2.attn_logit_softcapping",),
    ),
    W(
        "cap",
        "gemma2",
        lambda c: c.set("final_logit_softcapping", 30.0),
        ("gemma2.final_logit_softcapping",),
    ),
    W(
        "size-of-heads-missing",
        "gemma2",
        lambda c: c.drop("attention.key_length"),
        ("gemma2.attention.key_length",),
    ),
    W(
        "tied-head-zeros",
        "gemma2",
        lambda c: (
            c.tensors.update({HEAD: np.zeros_like(c.tensors[EMBD])})
            or c.kinds.update({HEAD: "F32"})
        ),
        (HEAD,),
        Kind.zeros,
    ),
    W(
        "base-in-windows-missing",
        "gemma3",
        lambda c: c.drop("rope.freq_base_swa"),
        ("gemma3.rope.freq_base_swa",),
    ),
    W(
        "pattern-of-windows",
        "gemma3",
        lambda c: c.keys.update({"gemma3.attention.sliding_window_pattern": ("U32", 2)}),
        ("gemma3.attention.sliding_window_pattern",),
    ),
)
EXPERTS = "blk.1.ffn_down_exps.weight"
OTHERS = (
    W(
        "expert-transposed",
        "qwen3moe",
        lambda c: c.change(EXPERTS, turn_expert),
        (EXPERTS,),
        Kind.experts,
        detail={"expert": 1, "transposed": True},
    ),
    W(
        "experts-swapped",
        "qwen3moe",
        lambda c: c.change(EXPERTS, lambda a: a[[0, 2, 1, 3]]),
        (EXPERTS,),
        Kind.experts,
        detail={"expert": 1, "holds_expert": 2},
    ),
    W(
        "expert-gates-and-ups",
        "qwen3moe",
        lambda c: c.swap("blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"),
        ("blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"),
        Kind.holds,
    ),
    W(
        "router-of-another-layer",
        "qwen3moe",
        lambda c: copy(c, "blk.0.ffn_gate_inp.weight", "blk.1.ffn_gate_inp.weight"),
        ("blk.1.ffn_gate_inp.weight",),
        Kind.holds,
    ),
    W(
        "experts-used",
        "qwen3moe",
        lambda c: c.set("expert_used_count", 1),
        ("qwen3moe.expert_used_count",),
    ),
    W(
        "bias-missing",
        "qwen2",
        lambda c: c.tensors.pop("blk.1.attn_k.bias"),
        ("blk.1.attn_k.bias",),
        Kind.missing,
    ),
    W(
        "bias-of-v",
        "qwen2",
        lambda c: copy(c, "blk.1.attn_v.bias", "blk.1.attn_k.bias"),
        ("blk.1.attn_k.bias",),
        Kind.holds,
    ),
    W(
        "q-paired",
        "qwen2",
        lambda c: c.change(Q, lambda a: pairs(a, 4)),
        (Q,),
        Kind.order,
        detail={"turns": 1, "heads": 4},
    ),
    W(
        "conv1d-as-it-is",
        "gpt2",
        lambda c: c.change("blk.1.ffn_up.weight", np.transpose),
        ("blk.1.ffn_up.weight",),
        Kind.transposed,
    ),
    W(
        "square-conv1d-as-it-is",
        "gpt2",
        lambda c: c.change(OUT, np.transpose),
        (OUT,),
        Kind.transposed,
    ),
    W(
        "merged-k-and-v",
        "gpt2",
        lambda c: c.change(
            "blk.0.attn_qkv.weight", lambda a: a[[*range(64), *range(128, 192), *range(64, 128)]]
        ),
        ("blk.0.attn_qkv.weight",),
    ),
    W(
        "positions-shifted",
        "gpt2",
        lambda c: c.change("position_embd.weight", lambda a: np.roll(a, -1, axis=0)),
        ("position_embd.weight",),
        Kind.shifted,
    ),
    W(
        "merged-halves",
        "phi3",
        lambda c: c.change(UP, lambda a: np.roll(a, ck.N_FF, axis=0)),
        (UP,),
        Kind.halves,
    ),
    W(
        "factors-swapped",
        "phi3",
        lambda c: c.swap("rope_factors_long.weight", "rope_factors_short.weight"),
        ("rope_factors_long.weight", "rope_factors_short.weight"),
    ),
    W(
        "original-context",
        "phi3",
        lambda c: c.drop("rope.scaling.original_context_length"),
        ("phi3.rope.scaling.original_context_length",),
    ),
    W(
        "attention-factor",
        "phi3",
        lambda c: c.drop("rope.scaling.attn_factor"),
        ("phi3.rope.scaling.attn_factor",),
    ),
    W("causal", "bert", lambda c: c.drop("attention.causal"), ("bert.attention.causal",)),
    W(
        "types-of-tokens",
        "bert",
        lambda c: c.change("token_types.weight", lambda a: a[::-1]),
        ("token_types.weight",),
    ),
)
WRONG: tuple[WrongConversion, ...] = (*LLAMA, *TOKENS, *GEMMAS, *OTHERS)
