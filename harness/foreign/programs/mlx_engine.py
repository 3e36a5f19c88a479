"""mlx: its GGUF reader, and the llama and qwen models of mlx-lm with the weights that this reader
returns."""

import importlib
import importlib.metadata
import math
import struct
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
from answering import Unsupported, greedy_ids, later, serve, steps, wanted_rows
from mlx_lm.models.cache import make_prompt_cache

# mlx-lm cannot load GGUF files, so this maps names of tensors to modules
MODULES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# False: rope pairs elements half a head apart
ROPE_OF_NEIGHBOURS = {"llama": True, "qwen2": False, "qwen3": False}
SHOWS = ["embd", "attn_norm", "attn_out", "ffn_inp", "ffn_norm", "ffn_out", "l_out"]
SHOWS += ["result_norm", "result_output"]
TYPES = {  # ggml's number of the type, weights and bytes of a block
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "BF16": (30, 1, 2),
    "Q4_0": (2, 32, 18),
    "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84),
    "Q3_K": (11, 256, 110),
    "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210),
    "MXFP4": (39, 32, 17),
}


class Model:
    def __init__(self, path):
        tensors, keys = load(path)
        self.name = plain(keys["general.architecture"])
        if self.name not in ROPE_OF_NEIGHBOURS:
            raise Unsupported(f"this program cannot fill an mlx-lm model for {self.name}")
        module = importlib.import_module(f"mlx_lm.models.{self.name}")
        weights = weights_of(tensors)
        self.model = module.Model(module.ModelArgs.from_dict(self.arguments(keys, weights)))
        self.model.load_weights([(module_of(name), value) for name, value in weights.items()])

    def arguments(self, keys, weights):
        key = lambda name, default=None: plain(keys.get(f"{self.name}.{name}", default))
        heads, width = key("attention.head_count"), key("embedding_length")
        return {
            "model_type": self.name,
            "hidden_size": width,
            "num_hidden_layers": key("block_count"),
            "intermediate_size": key("feed_forward_length"),
            "num_attention_heads": heads,
            "num_key_value_heads": key("attention.head_count_kv", heads),
            "head_dim": key("attention.key_length", width // heads),
            "rms_norm_eps": key("attention.layer_norm_rms_epsilon"),
            "vocab_size": weights["token_embd.weight"].shape[0],
            "max_position_embeddings": key("context_length"),
            "rope_theta": key("rope.freq_base", 10000.0),
            "rope_traditional": ROPE_OF_NEIGHBOURS[self.name],
            "rope_scaling": scaling(key),
            "tie_word_embeddings": "output.weight" not in weights,
        }

    def decode(self, ids, start, show=lambda node, value: None):
        """Run Model.__call__ and record what each layer computes."""
        if start == 0:
            self.cache = make_prompt_cache(self.model)
        inner = self.model.model
        show("embd", x := inner.embed_tokens(mx.array([ids])))
        mask = "causal" if len(ids) > 1 else None
        for i, (layer, cache) in enumerate(zip(inner.layers, self.cache, strict=True)):
            show(f"attn_norm-{i}", normed := layer.input_layernorm(x))
            show(f"attn_out-{i}", out := layer.self_attn(normed, mask, cache))
            show(f"ffn_inp-{i}", x := x + out)
            show(f"ffn_norm-{i}", normed := layer.post_attention_layernorm(x))
            show(f"ffn_out-{i}", out := layer.mlp(normed))
            show(f"l_out-{i}", x := x + out)
        show("result_norm", x := inner.norm(x))
        tied = "lm_head" not in self.model
        x = inner.embed_tokens.as_linear(x) if tied else self.model.lm_head(x)
        show("result_output", x)
        return np.array(x[0].astype(mx.float32))

    def greedy(self, question, _):
        return greedy_ids(self.decode, question)

    def logits(self, question, _):
        arrays = {}
        for i, (ids, start, wanted) in enumerate(steps(question["batches"])):
            shown = {}
            rows = self.decode(ids, start, lambda node, value, to=shown: to.update({node: value}))
            arrays[f"logits{i}"] = rows[wanted]
            for node, value in shown.items() if question["trace"] else ():
                value = np.array(value[0].astype(mx.float32))
                last = len(self.model.model.layers) - 1
                arrays[f"step{i}/{node}"] = wanted_rows(node, value, wanted, last)
        return {}, arrays


def scaling(key):
    kind, factor = key("rope.scaling.type"), key("rope.scaling.factor")
    return {"type": kind, "factor": factor} if kind not in (None, "none") else None


def module_of(name):
    """Return the parameter of mlx-lm for a tensor. Raises Unsupported for a tensor without a
    parameter, because ignoring the tensor would be a fault of this program."""
    parts = name.split(".")
    layer, (stem, kind) = (
        (f"model.layers.{parts[1]}.", parts[2:]) if len(parts) > 2 else ("", parts)
    )
    if stem not in MODULES or kind not in ("weight", "bias"):
        raise Unsupported(f"mlx-lm's model has no place for {name}")
    return f"{layer}{MODULES[stem]}.{kind}"


def weights_of(tensors):
    """Return all weights in float32. mx.load returns some weights in quantised blocks, which
    mx.dequantize decodes.

    The scales are in half precision. This function converts them to float32 first, because the
    decoded values have the precision of the scales.
    """
    found = {}
    for name, value in tensors.items():
        stem = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        if f"{stem}.scales" in tensors:
            scales, biases = (
                tensors[f"{stem}.{name}"].astype(mx.float32) for name in ("scales", "biases")
            )
            bits = value.shape[-1] * 32 // (scales.shape[-1] * 32)
            value = mx.dequantize(value, scales, biases, group_size=32, bits=bits)
        found[name] = value.astype(mx.float32)
    return found


def load(path):
    """Load the file. A tensor type that the reader lacks is not a fault of the file or the
    reader."""
    try:
        return mx.load(str(path), return_metadata=True)
    except RuntimeError as error:
        if "gguf_tensor_to_f16 failed" in str(error):
            raise Unsupported(f"a type of tensor that it does not read: {error}") from error
        raise


def parse(path):
    """Return the part of a file that mlx's reader shows: values without types, and decoded
    tensors."""
    _, keys = load(path)
    return {"metadata": {key: [None, plain(value)] for key, value in keys.items()}}, {}


def plain(value):
    if isinstance(value, mx.array):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def dequantize(question, arrays):
    """Decode a tensor. Write a file that holds only this tensor, because mx.load reads only
    files."""
    if question["type"] not in TYPES:
        raise Unsupported(f"a file with {question['type']}, which was not tested")
    kind, weights, size = TYPES[question["type"]]
    raw = arrays["raw"].tobytes()
    rows = len(raw) // size  # each row is one block
    name = b"a.weight"
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", len(name)) + name
    head += struct.pack("<IQQIQ", 2, weights, rows, kind, 0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.gguf"
        path.write_bytes(head + bytes(-len(head) % 32) + raw)
        tensors, _ = load(path)
    if "a.weight" not in tensors:
        raise Unsupported(f"a tensor of {question['type']} is missing in what mx.load returns")
    return {}, {"weights": np.array(weights_of(tensors)["a.weight"]).reshape(-1)}


def start(path, settings):
    mx.set_default_device(mx.cpu)
    said = {"engine": "mlx", "version": importlib.metadata.version("mlx")}
    said["build"] = f"mlx-lm {importlib.metadata.version('mlx-lm')}"
    answers = {"dequantize": dequantize}
    if path is not None:
        answers |= {"parse": lambda *_: parse(path)}
        answers |= later(lambda: Model(path), "greedy", "logits")
    can = [*answers, *(["trace"] if path else [])]
    cache = {"type_k": "F32", "type_v": "F32", "flash_attn": False}
    return {**said, "can": can, "shows": SHOWS, "settings": cache}, answers


serve(start)
