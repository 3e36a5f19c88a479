"""Small random Hugging Face checkpoints, with every kind of file that the comparison reads."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
N_VOCAB, N_EMBD, N_LAYER, N_HEAD, N_HEAD_KV, HEAD, N_FF, N_CTX = 272, 64, 3, 4, 2, 16, 96, 128
N_EXPERT, N_FF_EXPERT = 4, 32
MODEL_TYPES = {"qwen3moe": "qwen3_moe", "gemma3": "gemma3_text"}
POOLING_MODES = ("cls_token", "mean_tokens", "lasttoken")
N_PLAIN, N_MERGES = 256, 10
ADDED = ("<|begin|>", "<|end|>", "<tool>", "<pad>")
TEMPLATE = "{% for m in messages %}<|begin|>{{ m.content }}<|end|>{% endfor %}"
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
BERT_NORMALIZER = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
BERT_NORMALIZER |= {"strip_accents": None, "lowercase": True}
TEXT = {
    "vocab_size": N_VOCAB,
    "hidden_size": N_EMBD,
    "num_hidden_layers": N_LAYER,
    "num_attention_heads": N_HEAD,
    "num_key_value_heads": N_HEAD_KV,
    "intermediate_size": N_FF,
    "max_position_embeddings": N_CTX,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 266,
    "eos_token_id": 267,
}
GEMMA = TEXT | {"tie_word_embeddings": True, "head_dim": 32, "sliding_window": 32}
GEMMA |= {"query_pre_attn_scalar": 32}
LLAMAS_ALONE = ("rope_theta", "rms_norm_eps", "num_key_value_heads")
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": TEXT
    | {"architectures": ["LlamaForCausalLM"]}
    | {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "qwen2": TEXT | {"architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True},
    "qwen3": TEXT | {"architectures": ["Qwen3ForCausalLM"], "head_dim": 32},
    "qwen3moe": TEXT
    | {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": N_EXPERT, "head_dim": 32}
    | {"num_experts_per_tok": 2, "moe_intermediate_size": N_FF_EXPERT, "norm_topk_prob": True},
    "gemma2": GEMMA
    | {"architectures": ["Gemma2ForCausalLM"], "rope_theta": 10000.0}
    | {"attn_logit_softcapping": 40.0, "final_logit_softcapping": 20.0},
    "gemma3": GEMMA
    | {"architectures": ["Gemma3ForCausalLM"], "rope_local_base_freq": 20000.0}
    | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "phi3": TEXT
    | {"architectures": ["Phi3ForCausalLM"], "sliding_window": 64, "pad_token_id": 269}
    | {"original_max_position_embeddings": 64}
    | {
        "rope_scaling": {
            "type": "longrope",
            "long_factor": [1.0 + i / 4 for i in range(HEAD // 2)],
            "short_factor": [1.0 + i / 16 for i in range(HEAD // 2)],
        }
    },
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "vocab_size": N_VOCAB, "n_embd": N_EMBD}
    | {"n_layer": N_LAYER, "n_head": N_HEAD, "n_positions": N_CTX, "n_ctx": N_CTX}
    | {"layer_norm_epsilon": 1e-5, "bos_token_id": 266, "eos_token_id": 267},
    "bert": {
        **{key: value for key, value in TEXT.items() if key not in LLAMAS_ALONE},
        "architectures": ["BertModel"],
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
    },
}


def shapes_of(arch: str) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a checkpoint, as transformers saves them."""
    if arch == "gpt2":
        return shapes_of_gpt2()
    if arch == "bert":
        return shapes_of_bert()
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (N_VOCAB, N_EMBD)}
    parts = shapes_of_attention(arch) | shapes_of_feed_forward(arch)
    for layer in range(N_LAYER):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in parts.items()}
    shapes["model.norm.weight"] = (N_EMBD,)
    if not CONFIGS[arch]["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (N_VOCAB, N_EMBD)
    return shapes


def shapes_of_attention(arch: str) -> dict[str, tuple[int, ...]]:
    head = CONFIGS[arch].get("head_dim", HEAD)
    rows = {"q": N_HEAD * head, "k": N_HEAD_KV * head, "v": N_HEAD_KV * head}
    rows = {"qkv": sum(rows.values())} if arch == "phi3" else rows
    shapes: dict[str, tuple[int, ...]] = {
        f"self_attn.{name}_proj.weight": (n, N_EMBD) for name, n in rows.items()
    }
    if arch == "qwen2":
        shapes |= {f"self_attn.{name}_proj.bias": (n,) for name, n in rows.items()}
    if arch in ("qwen3", "qwen3moe", "gemma3"):
        shapes |= {f"self_attn.{name}_norm.weight": (head,) for name in "qk"}
    norms = ["input_layernorm", "post_attention_layernorm"]
    if arch in ("gemma2", "gemma3"):
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    shapes |= {f"{norm}.weight": (N_EMBD,) for norm in norms}
    return shapes | {"self_attn.o_proj.weight": (N_EMBD, N_HEAD * head)}


def shapes_of_feed_forward(arch: str) -> dict[str, tuple[int, ...]]:
    if arch == "phi3":
        return {
            "mlp.gate_up_proj.weight": (2 * N_FF, N_EMBD),
            "mlp.down_proj.weight": (N_EMBD, N_FF),
        }
    if arch != "qwen3moe":
        return mlp("mlp", N_FF)
    shapes: dict[str, tuple[int, ...]] = {"mlp.gate.weight": (N_EXPERT, N_EMBD)}
    for expert in range(N_EXPERT):
        shapes |= mlp(f"mlp.experts.{expert}", N_FF_EXPERT)
    return shapes


def mlp(at: str, n_ff: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        f"{at}.{name}_proj.weight": (n_ff, N_EMBD) for name in ("gate", "up")
    }
    return shapes | {f"{at}.down_proj.weight": (N_EMBD, n_ff)}


def shapes_of_gpt2() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"wte": (N_VOCAB, N_EMBD), "wpe": (N_CTX, N_EMBD)}
    sizes = {"attn.c_attn": 3 * N_EMBD, "attn.c_proj": N_EMBD, "mlp.c_fc": 4 * N_EMBD}
    for layer in range(N_LAYER):
        shapes |= {f"h.{layer}.{name}": (N_EMBD, n) for name, n in sizes.items()}
        shapes[f"h.{layer}.mlp.c_proj"] = (4 * N_EMBD, N_EMBD)
        shapes |= {f"h.{layer}.{norm}": (N_EMBD,) for norm in ("ln_1", "ln_2")}
    shapes["ln_f"] = (N_EMBD,)
    weights = {f"transformer.{name}.weight": shape for name, shape in shapes.items()}
    biases = {name[:-6] + "bias": s[-1:] for name, s in weights.items() if "te." not in name}
    return weights | {name: shape for name, shape in biases.items() if "wpe" not in name}


def shapes_of_bert() -> dict[str, tuple[int, ...]]:
    at = "embeddings"
    shapes: dict[str, tuple[int, ...]] = {f"{at}.word_embeddings.weight": (N_VOCAB, N_EMBD)}
    shapes[f"{at}.position_embeddings.weight"] = (N_CTX, N_EMBD)
    shapes[f"{at}.token_type_embeddings.weight"] = (2, N_EMBD)
    pairs: dict[str, tuple[int, ...]] = {f"{at}.LayerNorm": (N_EMBD,)}
    for layer in range(N_LAYER):
        at = f"encoder.layer.{layer}"
        square = ("attention.self.query", "attention.self.key", "attention.self.value")
        pairs |= {f"{at}.{name}": (N_EMBD, N_EMBD) for name in (*square, "attention.output.dense")}
        pairs[f"{at}.attention.output.LayerNorm"] = (N_EMBD,)
        pairs[f"{at}.intermediate.dense"] = (N_FF, N_EMBD)
        pairs[f"{at}.output.dense"] = (N_EMBD, N_FF)
        pairs[f"{at}.output.LayerNorm"] = (N_EMBD,)
    pairs["pooler.dense"] = (N_EMBD, N_EMBD)
    shapes |= {f"{name}.weight": shape for name, shape in pairs.items()}
    return shapes | {f"{name}.bias": shape[:1] for name, shape in pairs.items()}


def draw(arch: str, kind: str, seed: int = 0) -> dict[str, F32]:
    """Return random values for a checkpoint, rounded to the type in which it stores them."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes_of(arch).items():
        values = (rng.standard_normal(shape) * 0.05).astype(np.float32)
        found[name] = stored(values, kind)[1]
    return found


def stored(values: F32, kind: str) -> tuple[bytes, F32]:
    """Return the bytes of values in a safetensors type, and the decoded values."""
    if kind == "F32":
        return values.astype("<f4").tobytes(), values
    if kind == "F16":
        halves = values.astype("<f2")
        return halves.tobytes(), halves.astype(np.float32)
    bits = values.view(np.uint32)
    upper = ((bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")
    return upper.tobytes(), (upper.astype(np.uint32) << 16).view(np.float32)


def write_safetensors(path: Path, values: Mapping[str, F32], kind: str) -> None:
    header, data = {}, b""
    for name, array in values.items():
        raw, _ = stored(array, kind)
        ends = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": ends}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def byte_letters() -> list[str]:
    """Return the letters that byte-level BPE writes for the 256 bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in shown else chr(next(others)) for b in range(256)]


def merges() -> list[tuple[str, str]]:
    letters = byte_letters()
    return [(letters[97 + i], letters[98 + i]) for i in range(N_MERGES)]


def tokenizer_json(arch: str) -> dict[str, Any]:
    if arch == "bert":
        words = ["[UNK]", *(f"##w{i}" for i in range(100)), *(f"w{i}" for i in range(165))]
        vocab = {word: i for i, word in enumerate(words)}
        model: dict[str, Any] = {"type": "WordPiece", "unk_token": "[UNK]", "vocab": vocab}
        model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    else:
        vocab = {letter: i for i, letter in enumerate(byte_letters())}
        vocab |= {a + b: N_PLAIN + i for i, (a, b) in enumerate(merges())}
        lines = [[a, b] if arch == "qwen3" else f"{a} {b}" for a, b in merges()]
        model = {"type": "BPE", "vocab": vocab, "merges": lines}
    begin = {"SpecialToken": {"id": ADDED[0], "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": 266 + i, "content": text, "special": i != 2, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            for i, text in enumerate(ADDED)
        ],
        **({"normalizer": BERT_NORMALIZER} if arch == "bert" else {}),
        "pre_tokenizer": BYTE_LEVEL,
        "decoder": BYTE_LEVEL,
        "post_processor": {"type": "TemplateProcessing", "single": [begin, first]}
        | {"pair": [begin, first, begin, second]}
        | {"special_tokens": {ADDED[0]: {"id": ADDED[0], "ids": [266], "tokens": [ADDED[0]]}}},
        "model": model,
    }


def write_checkpoint(folder: Path, arch: str, kind: str = "BF16") -> dict[str, F32]:
    """Write a checkpoint, and return its values."""
    folder.mkdir(parents=True, exist_ok=True)
    values = draw(arch, kind)
    write_safetensors(folder / "model.safetensors", values, kind)
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": ADDED[0],
        "eos_token": {"__type": "AddedToken", "content": ADDED[1]},
        "pad_token": ADDED[3],
        "chat_template": TEMPLATE,
    }
    names = {
        "config.json": {"model_type": MODEL_TYPES.get(arch, arch)} | CONFIGS[arch],
        "tokenizer.json": tokenizer_json(arch),
        "tokenizer_config.json": described,
    }
    for name, content in names.items():
        (folder / name).write_text(json.dumps(content))
    return values


def write_pipeline(folder: Path, pooling: str, length: int, prompts: Mapping[str, str]) -> None:
    """Write the files that sentence-transformers writes next to a model: pooling, a norm,
    prompts."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{name}": name.startswith(pooling) for name in POOLING_MODES}
    files = {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": N_EMBD, **modes},
        "sentence_bert_config.json": {"max_seq_length": length, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": prompts, "default_prompt_name": None},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
