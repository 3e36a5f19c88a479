"""Writes a LoRA file from GGUF in PEFT's format: a folder with adapter_config.json and
adapter_model.safetensors, with the names and row order of the Hugging Face model."""

import json
import re
from pathlib import Path

import numpy as np
from answering import Unsupported
from gguf import GGUFReader

A, B = ".lora_a", ".lora_b"
MODULES = {
    "token_embd": "model.embed_tokens",
    "output": "lm_head",
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"},
    "attn_output": "self_attn.o_proj",
    **{f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
}
EMBEDDING = "token_embd"
# files of llama interleave the rows of these; Hugging Face has halves
HEADS = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}


def write_peft_folder(model, adapter, folder):
    """Write the adapter {"path", "scale"} of a model's file into a new folder, and return the
    folder's path as text."""
    file, of_model = GGUFReader(adapter["path"]), GGUFReader(model)
    tensors = {tensor.name: tensor for tensor in file.tensors}
    saved, ranks = {}, {}
    for name in sorted(each.removesuffix(A) for each in tensors if each.endswith(A)):
        a, b = (values(tensors[name + end]) for end in (A, B))
        part, module = module_of(name)
        if n_heads := number(of_model, HEADS.get(part)):
            pairs = b.reshape(n_heads, -1, 2, b.shape[-1])
            b = pairs.swapaxes(1, 2).reshape(b.shape)
        ranks[module] = b.shape[-1]
        if part == EMBEDDING:
            ends = {"embedding_A": a.T, "embedding_B": b}
        else:
            ends = {"A.weight": a, "B.weight": b}
        saved |= {f"base_model.model.{module}.lora_{end}": value for end, value in ends.items()}
    place = Path(folder)
    place.mkdir()
    about = config(ranks, number(file, "adapter.lora.alpha"), adapter["scale"])
    (place / "adapter_config.json").write_text(json.dumps(about))
    write_safetensors(place / "adapter_model.safetensors", saved)
    return str(place)


def config(ranks, alpha, scale):
    """Return PEFT's configuration. PEFT divides alpha by the rank. If the file has no alpha, the
    factor is the scale alone."""
    most = max(ranks.values())
    others = {module: rank for module, rank in ranks.items() if rank != most}
    if others and not alpha:
        raise Unsupported("a LoRA file of several ranks without alpha: PEFT has one alpha for all")
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": most,
        "rank_pattern": others,
        "lora_alpha": scale * (alpha or most),
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(ranks),
    }


def module_of(name):
    """Return the tensor's part and its Hugging Face module: blk.1.attn_q.weight gives attn_q and
    the module's path."""
    found = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", name)
    layer, part = found.groups() if found else (None, "")
    if part not in MODULES:
        raise Unsupported(f"a LoRA pair of {name}, whose name in Hugging Face's model is not known")
    return part, MODULES[part] if layer is None else f"model.layers.{layer}.{MODULES[part]}"


def values(tensor):
    if tensor.tensor_type.name not in ("F32", "F16"):
        raise Unsupported(f"a LoRA file with a tensor of {tensor.tensor_type.name}")
    return tensor.data.astype(np.float32)


def number(file, key):
    """Return a key's number; 0 if the key is missing."""
    field = file.get_field(key) if key else None
    return field.contents() if field else 0


def write_safetensors(path, tensors):
    head, at = {}, 0
    for name, value in tensors.items():
        end = at + value.nbytes
        head[name] = {"dtype": "F32", "shape": value.shape, "data_offsets": [at, end]}
        at = end
    raw = json.dumps(head).encode()
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for value in tensors.values():
            file.write(np.ascontiguousarray(value).tobytes())
