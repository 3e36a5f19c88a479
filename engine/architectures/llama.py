"""llama: pre-norm blocks, rotary positions on adjacent pairs, grouped-query attention, SwiGLU.

Dense or with a mixture of experts. Follows src/models/llama.cpp of llama.cpp (llama-cpp-python
0.3.36); site names are the names used there, as listed in engine/trace.py.
"""

import math
import re

import numpy as np

from engine.architectures.base import Architecture
from engine.batch import Batch
from engine.errors import InvalidModel, Unsupported
from engine.hparams import Hparams, Keys, Metadata
from engine.kv_cache import KvCache
from engine.ops.reference import Bools, Reference, RopeParams
from engine.quants.base import F32
from engine.trace import Probe, silent
from engine.weights import Weight

# keys that say something about the model but nothing about its graph
IGNORED = frozenset({"rope.scaling.original_context_length", "rope.scaling.finetuned"})


class Llama(Architecture, name="llama"):
    @classmethod
    def read_hparams(cls, metadata: Metadata) -> Hparams:
        keys = Keys(metadata, "llama")
        n_embd, n_head = keys.positive("embedding_length"), keys.positive("attention.head_count")
        n_embd_head = keys.positive("attention.key_length", n_embd // n_head)
        same_size(keys, "attention.value_length", n_embd_head)
        same_size(keys, "rope.dimension_count", n_embd_head)
        hparams = Hparams(
            n_vocab=vocabulary_size(keys),
            n_ctx_train=keys.positive("context_length"),
            n_embd=n_embd,
            n_layer=keys.positive("block_count"),
            n_ff=keys.positive("feed_forward_length"),
            n_head=n_head,
            n_head_kv=keys.positive("attention.head_count_kv", n_head),
            n_embd_head=n_embd_head,
            f_norm_rms_eps=keys.get("attention.layer_norm_rms_epsilon", float),
            rope_freq_base=keys.get("rope.freq_base", float, 10000.0),
            rope_freq_scale=rope_scale(keys),
            n_expert=keys.get("expert_count", int, 0),
            n_expert_used=keys.get("expert_used_count", int, 0),
        )
        keys.refuse_unread(IGNORED)
        check(hparams)
        return hparams

    def check_tensors(self) -> None:
        """In steps of the tensors that are there: the number of layers may be anything."""
        hp = self.hparams
        ffn = MOE if hp.n_expert else DENSE
        for name in self.weights.file.tensors:
            if name not in OUTSIDE and not is_of_a_layer(name, hp.n_layer, (*ATTENTION, *ffn)):
                raise Unsupported(f"tensor {name!r} is not known to this engine's llama")
        self.matrix("token_embd", hp.n_embd, hp.n_vocab)
        for layer in range(hp.n_layer):
            for key in (*ATTENTION, *ffn):
                self.layer_tensor(layer, key)
        self.weights.vector("output_norm.weight", hp.n_embd)
        self.output_matrix()
        self.rope_params()

    # --- tensors --------------------------------------------------------------------------

    def matrix(self, name: str, inputs: int, outputs: int) -> Weight:
        return self.weights.tensor(f"{name}.weight", (outputs, inputs))

    def layer_tensor(self, layer: int, key: str) -> Weight:
        """A tensor of a block, with the shape that the hyperparameters give it."""
        hp = self.hparams
        q, kv = hp.n_head * hp.n_embd_head, hp.n_head_kv * hp.n_embd_head
        shapes: dict[str, tuple[int, ...]] = {
            "attn_norm": (hp.n_embd,),
            "attn_q": (q, hp.n_embd),
            "attn_k": (kv, hp.n_embd),
            "attn_v": (kv, hp.n_embd),
            "attn_output": (hp.n_embd, q),
            "ffn_norm": (hp.n_embd,),
            "ffn_gate": (hp.n_ff, hp.n_embd),
            "ffn_up": (hp.n_ff, hp.n_embd),
            "ffn_down": (hp.n_embd, hp.n_ff),
            "ffn_gate_inp": (hp.n_expert, hp.n_embd),
            "ffn_gate_exps": (hp.n_expert, hp.n_ff, hp.n_embd),
            "ffn_up_exps": (hp.n_expert, hp.n_ff, hp.n_embd),
            "ffn_down_exps": (hp.n_expert, hp.n_embd, hp.n_ff),
        }
        return self.weights.tensor(f"blk.{layer}.{key}.weight", shapes[key])

    def output_matrix(self) -> Weight:
        """The head of its own, or the embeddings once more."""
        name = "output" if "output.weight" in self.weights else "token_embd"
        return self.matrix(name, self.hparams.n_embd, self.hparams.n_vocab)

    def rope_params(self) -> RopeParams:
        hp, factors = self.hparams, None
        if "rope_freqs.weight" in self.weights:
            factors = self.weights.vector("rope_freqs.weight", hp.n_embd_head // 2)
        return RopeParams(hp.n_embd_head, hp.rope_freq_base, hp.rope_freq_scale, factors)

    # --- the graph ------------------------------------------------------------------------

    def decode(
        self,
        batch: Batch,
        cache: KvCache,
        ops: Reference,
        *,
        flash_attn: bool,
        probe: Probe = silent,
    ) -> F32:
        hp = self.hparams
        cells = cache.reserve(batch)
        visible = cache.visible(batch)
        embeddings = self.matrix("token_embd", hp.n_embd, hp.n_vocab)
        x = probe("embd", None, ops.get_rows(embeddings, batch.tokens))  # (tokens, width)
        for layer in range(hp.n_layer):
            h = self.norm(layer, "attn_norm", x, ops, probe)
            h = self.attention(layer, h, batch, cells, visible, cache, ops, flash_attn, probe)
            if layer == hp.n_layer - 1:  # from here on only rows with outputs matter
                h, x = h[batch.outputs], x[batch.outputs]
            x = probe("ffn_inp", layer, ops.add(h, x))
            h = self.norm(layer, "ffn_norm", x, ops, probe)
            h = (self.experts if hp.n_expert else self.feed_forward)(layer, h, ops, probe)
            x = probe("l_out", layer, ops.add(h, x))
        norm = self.weights.vector("output_norm.weight", hp.n_embd)
        x = probe("result_norm", None, ops.rms_norm(x, norm, hp.f_norm_rms_eps))
        logits: F32 = probe("result_output", None, ops.linear(x, self.output_matrix()))
        return logits

    def norm(self, layer: int, key: str, x: F32, ops: Reference, probe: Probe) -> F32:
        weight = self.layer_tensor(layer, key).values()
        out: F32 = probe(key, layer, ops.rms_norm(x, weight, self.hparams.f_norm_rms_eps))
        return out

    def attention(
        self,
        layer: int,
        x: F32,
        batch: Batch,
        cells: slice,
        visible: Bools,
        cache: KvCache,
        ops: Reference,
        flash_attn: bool,
        probe: Probe,
    ) -> F32:
        hp, n = self.hparams, len(x)
        q = probe("Qcur", layer, ops.linear(x, self.layer_tensor(layer, "attn_q")))
        k = probe("Kcur", layer, ops.linear(x, self.layer_tensor(layer, "attn_k")))
        v = probe("Vcur", layer, ops.linear(x, self.layer_tensor(layer, "attn_v")))
        q = q.reshape(n, hp.n_head, hp.n_embd_head)
        k, v = (t.reshape(n, hp.n_head_kv, hp.n_embd_head) for t in (k, v))

        rope = self.rope_params()
        q = probe("Qcur_rope", layer, ops.rope(q, batch.positions, rope))
        k = probe("Kcur_rope", layer, ops.rope(k, batch.positions, rope))

        cache.store(layer, cells, k, v)
        keys, values = cache.read(layer)  # (cells, kv_heads, head_dim)
        keys = probe("k_cache", layer, keys.astype(np.float32)).astype(keys.dtype)
        values = probe("v_cache", layer, values.astype(np.float32)).astype(values.dtype)

        scale = 1 / math.sqrt(hp.n_embd_head)
        if flash_attn:
            out = probe("fattn", layer, ops.flash_attn(q, keys, values, scale, visible))
        else:
            kq = probe("kq", layer, ops.kq(q, keys))  # (heads, tokens, cells)
            kq = probe("kq_soft_max", layer, ops.soft_max(kq, scale, visible))
            out = probe("kqv_out", layer, ops.kqv(kq, values))
        attn_out: F32 = probe(
            "attn_out", layer, ops.linear(out, self.layer_tensor(layer, "attn_output"))
        )
        return attn_out

    def feed_forward(self, layer: int, x: F32, ops: Reference, probe: Probe) -> F32:
        up = probe("ffn_up", layer, ops.linear(x, self.layer_tensor(layer, "ffn_up")))
        gate = probe("ffn_gate", layer, ops.linear(x, self.layer_tensor(layer, "ffn_gate")))
        h = probe("ffn_swiglu", layer, ops.swiglu(gate, up))
        out: F32 = probe("ffn_out", layer, ops.linear(h, self.layer_tensor(layer, "ffn_down")))
        return out

    def experts(self, layer: int, x: F32, ops: Reference, probe: Probe) -> F32:
        router = self.layer_tensor(layer, "ffn_gate_inp")
        logits = probe("ffn_moe_logits", layer, ops.linear(x, router))  # (tokens, experts)
        probs = probe("ffn_moe_probs", layer, ops.soft_max(logits, 1.0, None))
        ids = probe("ffn_moe_topk", layer, ops.top_k(probs, self.hparams.n_expert_used))
        weights = probe("ffn_moe_weights", layer, ops.pick(probs, ids))  # (tokens, used)
        weights = probe("ffn_moe_weights_norm", layer, ops.normalise(weights))

        x = x[:, None, :]  # the same row for every expert chosen
        w_up, w_gate, w_down = (
            self.layer_tensor(layer, f"ffn_{k}_exps") for k in ("up", "gate", "down")
        )
        up = probe("ffn_moe_up", layer, ops.linear_id(x, w_up, ids))  # (tokens, used, n_ff)
        gate = probe("ffn_moe_gate", layer, ops.linear_id(x, w_gate, ids))
        h = probe("ffn_moe_swiglu", layer, ops.swiglu(gate, up))
        h = probe("ffn_moe_down", layer, ops.linear_id(h, w_down, ids))  # (tokens, used, width)
        h = probe("ffn_moe_weighted", layer, ops.mul(h, weights[..., None]))
        out: F32 = probe("ffn_moe_out", layer, ops.sum_experts(h))
        return out


def same_size(keys: Keys, key: str, expected: int) -> None:
    """llama.cpp's llama demands one head size for keys, values and rotation."""
    found = keys.positive(key, expected)
    if found != expected:
        raise InvalidModel(f"llama.{key} is {found}; expected {expected}, the size of a head")


def vocabulary_size(keys: Keys) -> int:
    """From `llama.vocab_size`, or else the number of the tokenizer's tokens."""
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    return keys.positive("vocab_size", len(tokens.data) if tokens is not None else None)


def rope_scale(keys: Keys) -> float:
    """The inverse of the linear factor, which has an old and a new key."""
    kind = keys.get("rope.scaling.type", str, "linear")
    if kind not in ("none", "linear"):
        raise Unsupported(f"llama.rope.scaling.type is {kind!r}; known: linear, none")
    old: float = keys.get("rope.scale_linear", float, 0.0)
    factor: float = keys.get("rope.scaling.factor", float, old)
    return 1.0 if factor == 0.0 or kind == "none" else 1.0 / factor


def check(hp: Hparams) -> None:
    if hp.n_head % hp.n_head_kv:
        raise InvalidModel(
            f"llama.attention.head_count ({hp.n_head}) is no multiple of head_count_kv "
            f"({hp.n_head_kv})"
        )
    if hp.n_embd_head % 2:
        raise InvalidModel(f"a head of {hp.n_embd_head} elements cannot be rotated in pairs")
    if not hp.f_norm_rms_eps >= 0:
        raise InvalidModel(
            f"llama.attention.layer_norm_rms_epsilon is {hp.f_norm_rms_eps}; expected 0 or more"
        )
    if not 0 <= hp.n_expert_used <= hp.n_expert or bool(hp.n_expert) != bool(hp.n_expert_used):
        raise InvalidModel(
            f"llama.expert_used_count is {hp.n_expert_used} of llama.expert_count {hp.n_expert}"
        )


def is_of_a_layer(name: str, n_layer: int, keys: tuple[str, ...]) -> bool:
    found = re.fullmatch(r"blk\.(0|[1-9][0-9]*)\.(\w+)\.weight", name)
    return found is not None and int(found[1]) < n_layer and found[2] in keys


OUTSIDE = ("token_embd.weight", "output_norm.weight", "output.weight", "rope_freqs.weight")
ATTENTION = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm")
DENSE = ("ffn_gate", "ffn_up", "ffn_down")
MOE = ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
