"""A small engine in Lockstep's protocol: llama models whose weights are F32, with numpy alone.

lockstep smoke -- python engine.py
lockstep check model.gguf --engine "python engine.py"
"""

import json
import struct
import sys

import numpy as np

VALUES = ("B", "b", "H", "h", "I", "i", "f", "?", "text", "array", "Q", "q", "d")  # in GGUF
SHOWS = [
    *("embd", "attn_norm", "Qcur", "Kcur", "Vcur", "Qcur_rope", "Kcur_rope", "kqv_out", "attn_out"),
    *("ffn_inp", "ffn_norm", "ffn_gate", "ffn_up", "ffn_swiglu", "ffn_out", "l_out"),
    *("result_norm", "result_output"),
]


class File:  # GGUF: keys and a table of tensors
    def __init__(self, path):
        self.raw, self.at = np.memmap(path, np.uint8, "r"), 4  # after the letters GGUF
        _, n_tensors, n_keys = (self.take(code) for code in "IQQ")
        self.keys = {self.text(): self.value(self.take("I")) for _ in range(n_keys)}
        self.tensors = {self.text(): self.tensor() for _ in range(n_tensors)}
        self.data = -(-self.at // 32) * 32  # the default alignment

    def take(self, code):
        (value,) = struct.unpack_from("<" + code, self.raw, self.at)
        self.at += struct.calcsize(code)
        return value

    def text(self):
        return self.take(f"{self.take('Q')}s").decode("utf-8", "surrogateescape")

    def value(self, kind):
        if VALUES[kind] == "text":
            return self.text()
        if VALUES[kind] == "array":
            item, n = self.take("I"), self.take("Q")
            return [self.value(item) for _ in range(n)]
        return self.take(VALUES[kind])

    def tensor(self):
        return [self.take("Q") for _ in range(self.take("I"))], self.take("I"), self.take("Q")

    def weights(self, name):
        ne, kind, offset = self.tensors[name]
        if kind != 0:
            raise ValueError(f"{name}: type {kind}, and this engine reads F32 (0) alone")
        values = self.raw[self.data + offset :][: 4 * int(np.prod(ne))].view("<f4")
        return values.reshape(ne[::-1])  # the fastest axis last


class Llama:
    def __init__(self, file):
        key = lambda name, default=None: file.keys.get(f"llama.{name}", default)
        self.w = {name: file.weights(name) for name in file.tensors}
        self.layers, self.heads = key("block_count"), key("attention.head_count")
        self.kv_heads = key("attention.head_count_kv", self.heads)
        self.eps = np.float32(key("attention.layer_norm_rms_epsilon"))
        self.base = key("rope.freq_base", 10000.0)

    def norm(self, x, weight):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.eps) * self.w[weight]

    def rope(self, x, positions):
        angle = positions[:, None, None] / self.base ** (np.arange(0, x.shape[-1], 2) / x.shape[-1])
        sin, cos, a, b = np.sin(angle), np.cos(angle), x[..., 0::2], x[..., 1::2]
        return np.stack((a * cos - b * sin, a * sin + b * cos), -1).reshape(x.shape)

    def attention(self, q, k, v, hidden):
        k, v = (np.repeat(a, self.heads // self.kv_heads, 1) for a in (k, v))
        score = np.einsum("thd,chd->htc", q, k) / np.sqrt(q.shape[-1])  # (heads, tokens, cells)
        score = np.where(hidden, -np.inf, score)
        p = np.exp(score - score.max(-1, keepdims=True))
        return np.einsum("htc,chd->thd", p / p.sum(-1, keepdims=True), v).reshape(len(q), -1)

    def run(self, batches, show):
        """Return the logits of each batch. show(node, value) returns the value to go on with."""
        caches = [None] * self.layers
        return [self.decode(b, caches, show, f"step{i}/") for i, b in enumerate(batches)]

    def decode(self, batch, caches, see, step):
        show = lambda node, value: see(step + node, np.asarray(value, np.float32))
        outputs = np.array(batch["outputs"]) > 0
        positions, sequences = np.array(batch["positions"]), np.array(batch["sequences"])
        x = show("embd", self.w["token_embd.weight"][batch["tokens"]])
        for i in range(self.layers):
            product = lambda x, name, i=i: x @ self.w[f"blk.{i}.{name}.weight"].T
            h = show(f"attn_norm-{i}", self.norm(x, f"blk.{i}.attn_norm.weight"))
            q, k, v = (show(f"{c}cur-{i}", product(h, f"attn_{c.lower()}")) for c in "QKV")
            q, k, v = (a.reshape(len(x), -1, q.shape[-1] // self.heads) for a in (q, k, v))
            q, k = (show(f"{c}cur_rope-{i}", self.rope(a, positions)) for c, a in zip("QK", (q, k)))
            new = (k, v, positions, sequences)
            caches[i] = [np.concatenate(p) for p in zip(caches[i] or [a[:0] for a in new], new)]
            k, v, at, of = caches[i]
            hidden = (at > positions[:, None]) | (of != sequences[:, None])
            h = show(f"kqv_out-{i}", self.attention(q, k, v, hidden))
            h = show(f"attn_out-{i}", product(h, "attn_output"))
            if i == self.layers - 1:  # only rows with logits are needed now
                h, x = h[outputs], x[outputs]
            x = show(f"ffn_inp-{i}", h + x)
            h = show(f"ffn_norm-{i}", self.norm(x, f"blk.{i}.ffn_norm.weight"))
            gate, up = (show(f"{n}-{i}", product(h, n)) for n in ("ffn_gate", "ffn_up"))
            h = show(f"ffn_swiglu-{i}", gate / (1 + np.exp(-gate)) * up)
            x = show(f"l_out-{i}", show(f"ffn_out-{i}", product(h, "ffn_down")) + x)
        x = show("result_norm", self.norm(x, "output_norm.weight"))
        head = "output" if "output.weight" in self.w else "token_embd"
        return show("result_output", x @ self.w[f"{head}.weight"].T)


def answer(question, given, model):
    if question["ask"] == "start":
        can = ["logits", "trace", "replace"]
        return {"protocol": 1, "engine": "example", "version": "1", "can": can, "shows": SHOWS}, {}
    shown = {}

    def show(node, value):
        shown[node] = value
        return given.get(node, value)

    logits = dict(enumerate(model.run(question["batches"], show)))
    shown = shown if question["trace"] else {}
    return {}, {f"logits{i}": rows for i, rows in logits.items()} | shown


def main():
    model = None
    while line := sys.stdin.buffer.readline():
        question = json.loads(line)
        given = {}
        for name, _, shape in question["arrays"]:  # this engine gets only f32
            raw = sys.stdin.buffer.read(4 * int(np.prod(shape)))
            given[name] = np.frombuffer(raw, "<f4").reshape(shape)
        try:
            if question["ask"] == "start":
                model = Llama(File(question["model"]))
            said, arrays = answer(question, given, model)
            head = {"id": question["id"], "answer": said}
        except Exception as error:
            head, arrays = {"id": question["id"], "failed": repr(error)}, {}
        head["arrays"] = [[name, "f32", list(a.shape)] for name, a in arrays.items()]
        raw = b"".join(a.astype("<f4").tobytes() for a in arrays.values())
        sys.stdout.buffer.write(json.dumps(head).encode() + b"\n" + raw)
        sys.stdout.buffer.flush()


main()
