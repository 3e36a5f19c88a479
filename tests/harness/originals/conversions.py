"""A separate converter for the tests: it converts checkpoints of `checkpoints.py` into GGUF files,
and damages them.

It shares no code with the tables that the tests check. `Conversion` holds a file's content before
it is written, so that a wrong conversion can change keys and arrays.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.synth.gguf_writer import write_gguf
from tests.harness.originals import checkpoints as ck

F32 = NDArray[np.float32]
CONTROL, USER_DEFINED, UNUSED, NORMAL = 3, 4, 5, 1


@dataclass
class Conversion:
    """Keys with their types, and tensors as float32 with the type to store. `raw` holds bytes that
    replace a tensor's values."""

    arch: str
    keys: dict[str, tuple[str, Any]]
    tensors: dict[str, F32]
    kinds: dict[str, str]
    raw: dict[str, bytes]

    def write(self, path: Path) -> Path:
        tensors = []
        for name, values in self.tensors.items():
            kind = self.kinds[name]
            data = self.raw.get(name) or ENCODERS[kind](values)
            tensors.append((name, values.shape[::-1], kind, data))
        write_gguf(path, self.keys, tensors)
        return path

    def key(self, name: str) -> str:
        return f"{self.arch}.{name}"

    def set(self, name: str, value: Any) -> None:
        """Change the value of a key, but not its type."""
        key = name if name in self.keys else self.key(name)
        self.keys[key] = (self.keys[key][0], value)

    def drop(self, name: str) -> None:
        del self.keys[name if name in self.keys else self.key(name)]

    def change(self, name: str, change: Callable[[F32], F32]) -> None:
        self.tensors[name] = np.ascontiguousarray(change(self.tensors[name]))

    def swap(self, first: str, second: str) -> None:
        tensors = self.tensors
        tensors[first], tensors[second] = tensors[second], tensors[first]

    def edit(self, name: str, index: int, value: Any) -> None:
        """Change one element of an array under a tokenizer key."""
        kind, values = self.keys[f"tokenizer.ggml.{name}"]
        values = list(values)
        values[index] = value
        self.keys[f"tokenizer.ggml.{name}"] = (kind, values)


def pairs(rows: F32, heads: int) -> F32:
    """Interleave the two halves of each head's rows."""
    split = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(rows.shape))


def convert(arch: str, values: dict[str, F32], kind: str = "F32") -> Conversion:
    """Return the honest conversion. `kind` is the type of the matrices."""
    made = NAMES[arch](values)
    kinds = {name: kind if a.ndim > 1 else "F32" for name, a in made.items()}
    return Conversion(arch, {**keys_of(arch), **tokenizer_of(arch)}, made, kinds, {})


# --- tensors --------------------------------------------------------------------------------

LLAMA = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
GEMMA = LLAMA | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
PHI3 = LLAMA | {"ffn_up": "mlp.gate_up_proj"}


def name_like_llama(values: dict[str, F32], table: dict[str, str]) -> dict[str, F32]:
    made = {"token_embd.weight": values["model.embed_tokens.weight"]}
    for layer in range(ck.N_LAYER):
        for ours, theirs in table.items():
            for end in ("weight", "bias"):
                if (name := f"model.layers.{layer}.{theirs}.{end}") in values:
                    made[f"blk.{layer}.{ours}.{end}"] = values[name]
    made["output_norm.weight"] = values["model.norm.weight"]
    if "lm_head.weight" in values:
        made["output.weight"] = values["lm_head.weight"]
    return made


def name_llama(values: dict[str, F32]) -> dict[str, F32]:
    made = name_like_llama(values, LLAMA)
    for layer in range(ck.N_LAYER):
        for name, heads in (("q", ck.N_HEAD), ("k", ck.N_HEAD_KV)):
            key = f"blk.{layer}.attn_{name}.weight"
            made[key] = pairs(made[key], heads)
    return made


def name_qwen(values: dict[str, F32]) -> dict[str, F32]:
    return name_like_llama(values, LLAMA)


def name_qwen3moe(values: dict[str, F32]) -> dict[str, F32]:
    made = name_like_llama(values, LLAMA)
    for layer in range(ck.N_LAYER):
        for part in ("gate", "up", "down"):
            at = f"model.layers.{layer}.mlp.experts"
            experts = [values[f"{at}.{e}.{part}_proj.weight"] for e in range(ck.N_EXPERT)]
            made[f"blk.{layer}.ffn_{part}_exps.weight"] = np.stack(experts)
    return made


def name_gemma(values: dict[str, F32]) -> dict[str, F32]:
    made = name_like_llama(values, GEMMA)
    return {name: a + np.float32(1) if "norm" in name else a for name, a in made.items()}


def name_phi3(values: dict[str, F32]) -> dict[str, F32]:
    made = name_like_llama(values, PHI3)
    scaling = ck.CONFIGS["phi3"]["rope_scaling"] or {}
    for kind in ("long", "short") if scaling else ():
        factors = np.array(scaling[f"{kind}_factor"], np.float32)
        made[f"rope_factors_{kind}.weight"] = factors
    return made


def name_gpt2(values: dict[str, F32]) -> dict[str, F32]:
    rows = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}
    for layer in range(ck.N_LAYER):
        parts = {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output"}
        parts |= {"ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
        rows |= {f"h.{layer}.{theirs}": f"blk.{layer}.{ours}" for theirs, ours in parts.items()}
    made = {}
    for name, array in values.items():
        theirs, _, end = name.removeprefix("transformer.").rpartition(".")
        turned = array.T if ".c_" in name else array
        made[f"{rows[theirs]}.{end}"] = np.ascontiguousarray(turned)
    return made


def name_bert(values: dict[str, F32]) -> dict[str, F32]:
    at = "embeddings"
    rows = {f"{at}.word_embeddings": "token_embd", f"{at}.LayerNorm": "token_embd_norm"}
    rows |= {f"{at}.position_embeddings": "position_embd"}
    rows |= {f"{at}.token_type_embeddings": "token_types"}
    for layer in range(ck.N_LAYER):
        parts = {"attention.self.query": "attn_q", "attention.self.key": "attn_k"}
        parts |= {"attention.self.value": "attn_v", "attention.output.dense": "attn_output"}
        parts |= {"attention.output.LayerNorm": "attn_output_norm", "output.dense": "ffn_down"}
        parts |= {"intermediate.dense": "ffn_up", "output.LayerNorm": "layer_output_norm"}
        rows |= {f"encoder.layer.{layer}.{a}": f"blk.{layer}.{b}" for a, b in parts.items()}
    split = ((name.rpartition("."), array) for name, array in values.items())
    return {f"{rows[name]}.{end}": array for (name, _, end), array in split if name in rows}


NAMES = {
    "llama": name_llama,
    "qwen2": name_qwen,
    "qwen3": name_qwen,
    "qwen3moe": name_qwen3moe,
    "gemma2": name_gemma,
    "gemma3": name_gemma,
    "phi3": name_phi3,
    "gpt2": name_gpt2,
    "bert": name_bert,
}


# --- keys -----------------------------------------------------------------------------------


def keys_of(arch: str) -> dict[str, tuple[str, Any]]:
    sizes = {
        "block_count": ck.N_LAYER,
        "context_length": ck.N_CTX,
        "embedding_length": ck.N_EMBD,
        "feed_forward_length": 4 * ck.N_EMBD if arch == "gpt2" else ck.N_FF,
        "attention.head_count": ck.N_HEAD,
    }
    floats = {}
    if arch not in ("gpt2", "bert"):
        sizes["attention.head_count_kv"] = ck.N_HEAD_KV
    if arch in ("gpt2", "bert"):
        floats["attention.layer_norm_epsilon"] = 1e-5 if arch == "gpt2" else 1e-12
    else:
        config = ck.CONFIGS[arch]
        floats["attention.layer_norm_rms_epsilon"] = 1e-5
        floats["rope.freq_base"] = config["rope_theta"]
        if "head_dim" in config:
            sizes |= {f"attention.{kind}_length": 32 for kind in ("key", "value")}
        if arch in ("gemma2", "gemma3", "phi3"):
            sizes["attention.sliding_window"] = config["sliding_window"]
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            floats |= {name: config[name]} if name in config else {}
    made = {f"{arch}.{name}": ("U32", value) for name, value in sizes.items()}
    made |= {f"{arch}.{name}": ("F32", value) for name, value in floats.items()}
    more = {key: value for key, value in MORE.items() if key.startswith(f"{arch}.")}
    return {"general.architecture": ("STR", arch), **made, **more}


MORE: dict[str, tuple[str, Any]] = {
    "llama.vocab_size": ("U32", ck.N_VOCAB),
    "llama.rope.dimension_count": ("U32", ck.HEAD),
    "llama.rope.scaling.type": ("STR", "linear"),
    "llama.rope.scaling.factor": ("F32", 4.0),
    "qwen3moe.expert_count": ("U32", ck.N_EXPERT),
    "qwen3moe.expert_used_count": ("U32", 2),
    "qwen3moe.expert_feed_forward_length": ("U32", ck.N_FF_EXPERT),
    "gemma3.rope.freq_base_swa": ("F32", 20000.0),
    "gemma3.rope.scaling.type": ("STR", "linear"),
    "gemma3.rope.scaling.factor": ("F32", 8.0),
    "phi3.rope.dimension_count": ("U32", ck.HEAD),
    "phi3.rope.scaling.original_context_length": ("U32", 64),
    # sqrt(1 + ln(128 / 64) / ln(64))
    "phi3.rope.scaling.attn_factor": ("F32", 1.0801234497346435),
    "bert.attention.causal": ("BOOL", False),
}


def tokenizer_of(arch: str) -> dict[str, tuple[str, Any]]:
    texts = [*ck.byte_letters(), *(a + b for a, b in ck.merges())]
    if arch == "bert":
        texts = ["▁[UNK]", *(f"w{i}" for i in range(100)), *(f"▁w{i}" for i in range(165))]
    texts += [*ck.ADDED, "[PAD270]", "[PAD271]"]
    types = [NORMAL] * 266 + [CONTROL, CONTROL, USER_DEFINED, CONTROL, UNUSED, UNUSED]
    made: dict[str, tuple[str, Any]] = {
        "model": ("STR", "bert" if arch == "bert" else "gpt2"),
        "pre": ("STR", "gpt-2"),
        "tokens": ("ARR[STR]", texts),
        "token_type": ("ARR[I32]", types),
        "bos_token_id": ("U32", 266),
        "eos_token_id": ("U32", 267),
        "padding_token_id": ("U32", 269),
        "add_bos_token": ("BOOL", True),
    }
    if arch == "bert":
        made["token_type_count"] = ("U32", 2)
    else:
        made["merges"] = ("ARR[STR]", [f"{a} {b}" for a, b in ck.merges()])
    found = {f"tokenizer.ggml.{name}": value for name, value in made.items()}
    return found | {"tokenizer.chat_template": ("STR", ck.TEMPLATE)}


# --- types ----------------------------------------------------------------------------------


def encode_f16(values: F32) -> bytes:
    return values.astype("<f2").tobytes()


def encode_bf16(values: F32) -> bytes:
    return ck.stored(values, "BF16")[0]


def encode_q8_0(values: F32) -> bytes:
    blocks = values.reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    codes = np.round(blocks / np.where(scale == 0, 1, scale)).astype(np.int8)
    out = np.empty(len(blocks), np.dtype([("d", "<f2"), ("q", "i1", 32)]))
    out["d"], out["q"] = scale[:, 0], codes
    return out.tobytes()


def encode_q4_0(values: F32) -> bytes:
    blocks = values.reshape(-1, 32)
    at = np.abs(blocks).argmax(axis=1)[:, None]
    scale = np.take_along_axis(blocks, at, axis=1) / np.float32(-8)
    codes = np.trunc(blocks / np.where(scale == 0, 1, scale) + np.float32(8.5))
    codes = np.minimum(codes, 15).astype(np.uint8)
    out = np.empty(len(blocks), np.dtype([("d", "<f2"), ("q", "u1", 16)]))
    out["d"], out["q"] = scale[:, 0], codes[:, :16] | codes[:, 16:] << 4
    return out.tobytes()


ENCODERS: dict[str, Callable[[F32], bytes]] = {
    "F32": lambda values: values.astype("<f4").tobytes(),
    "F16": encode_f16,
    "BF16": encode_bf16,
    "Q8_0": encode_q8_0,
    "Q4_0": encode_q4_0,
}
