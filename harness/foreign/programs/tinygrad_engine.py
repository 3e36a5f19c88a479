"""tinygrad: its own GGUF loader and its Transformer, with weights, logits and tensors of every
layer."""

import os

os.environ["HALF"] = "0"  # weights stay in single precision, as with `exact`
os.environ.setdefault("DEVICE", "CPU")

import importlib.metadata
import math
import sys
import types

import numpy as np
from answering import Unsupported, greedy_ids, later, serve, steps, wanted_rows
from tinygrad import Tensor, nn
from tinygrad.llm.gguf import ggml_data_to_tensor, gguf_load

try:
    import tinygrad.llm.model
# the wheel of 0.14.0 lacks this package; on a CPU only its Linear is needed
except ModuleNotFoundError:
    lacking = types.ModuleType("tinygrad.llm.kernels.amd")
    lacking.Linear, lacking.gated_delta_prefill, lacking.flash_attention = nn.Linear, None, None
    lacking.amd_custom_kernels_supported = lambda device: False
    sys.modules |= {"tinygrad.llm.kernels": types.ModuleType("kernels"), lacking.__name__: lacking}
    import tinygrad.llm.model

IDS = {  # numbers of ggml's types
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "IQ2_XXS": 16,
    "IQ2_XS": 17,
    "IQ3_XXS": 18,
    "IQ1_S": 19,
    "IQ4_NL": 20,
    "IQ3_S": 21,
    "IQ2_S": 22,
    "IQ4_XS": 23,
    "IQ1_M": 29,
    "BF16": 30,
    "TQ1_0": 34,
    "TQ2_0": 35,
    "MXFP4": 39,
    "Q1_0": 41,
}
BLOCKS = {0: (1, 4), 1: (1, 2), 30: (1, 2)}  # (weights, bytes) of types without blocks
SHOWS = [
    *("embd", "attn_norm", "attn_out", "ffn_inp", "ffn_norm", "ffn_out", "ffn_moe_out", "l_out"),
    *("result_norm", "result_output"),
]


class Model:
    def __init__(self, path, n_ctx):
        made = load(tinygrad.llm.model.Transformer.from_gguf, path, max_context=n_ctx)
        self.model = made[0]

    def decode(self, ids, start, show=lambda node, value: None):
        """Run Transformer.forward and record what FFNBlock.__call__ computes."""
        model = self.model
        x = model.token_embd(Tensor([ids], dtype="int32")).float()
        show("embd", x)
        for i, block in enumerate(model.blk):
            block._init_state(x)
            show(f"attn_norm-{i}", normed := block.attn_norm(x).realize())
            show(f"attn_out-{i}", out := block._attention(normed, start).realize())
            show(f"ffn_inp-{i}", x := (x + out).realize())
            show(f"ffn_norm-{i}", normed := block.ffn_norm(x).realize())
            name = "ffn_moe_out" if hasattr(block, "ffn_gate_exps") else "ffn_out"
            show(f"{name}-{i}", out := block._feed_forward(normed).realize())
            show(f"l_out-{i}", x := (x + out).realize())
        show("result_norm", x := model.output_norm(x).realize())
        show("result_output", x := model.output(x).realize())
        return x.numpy()[0]

    def greedy(self, question, _):
        return greedy_ids(self.decode, question)

    def logits(self, question, _):
        arrays = {}
        for i, (ids, start, wanted) in enumerate(steps(question["batches"])):
            shown = {}
            rows = self.decode(ids, start, lambda node, value, to=shown: to.update({node: value}))
            arrays[f"logits{i}"] = np.asarray(rows[wanted], np.float32)
            for node, tensor in shown.items() if question["trace"] else ():
                value = tensor.numpy()[0].astype(np.float32)
                last = len(self.model.blk) - 1
                arrays[f"step{i}/{node}"] = wanted_rows(node, value, wanted, last)
        return {}, arrays


def load(work, *given, **options):
    """Load the file. A tensor type that the reader lacks is not a fault of the file."""
    try:
        return work(*given, **options)
    except ValueError as error:
        if "GGML type" in str(error):
            raise Unsupported(str(error)) from error
        raise


def parse(path):
    """Return the values of a file. tinygrad's reader keeps no types, and shows only decoded
    tensors."""
    keys, _ = load(gguf_load, path)
    return {"metadata": {key: [None, plain(value)] for key, value in keys.items()}}, {}


def plain(value):
    """Convert a value to JSON. A value that JSON cannot express becomes the text that Python prints
    for it."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (str, int, float, bool)) else repr(value)


def dequantize(question, arrays):
    kind = IDS.get(question["type"], -1)
    sizes = BLOCKS | tinygrad.llm.gguf._GGML_QUANT
    if kind not in sizes:
        raise Unsupported(f"ggml_data_to_tensor has no {question['type']}")
    raw = arrays["raw"]
    weights, size = sizes[kind]
    n = raw.size // size * weights
    made = ggml_data_to_tensor(Tensor(raw.copy()), n, kind)
    return {}, {"weights": made.float().numpy().reshape(-1)[:n]}


def start(path, settings):
    said = {"engine": "tinygrad", "version": importlib.metadata.version("tinygrad")}
    asked = ("greedy", "logits") if path else ()
    answers = {
        **({"parse": lambda *_: parse(path)} if path else {}),
        **later(lambda: Model(path, settings["n_ctx"]), *asked),
        "dequantize": dequantize,
    }
    can = [*answers, *(["trace"] if path else [])]
    cache = {"type_k": "F16", "type_v": "F16", "flash_attn": False}  # these cannot be changed
    return {**said, "can": can, "shows": SHOWS, "settings": cache}, answers


serve(start)
