"""llama: pre-norm blocks, rotary positions on adjacent pairs, grouped-query attention, SwiGLU.

Dense or with a mixture of experts. Follows src/models/llama.cpp of llama.cpp (llama-cpp-python
0.3.36). Results have the names of llama.cpp's nodes, or names from harness/sites.py.
"""

import math
from typing import Any

from lockstep.engine.architectures.base import Architecture
from lockstep.engine.architectures.positions import scale_rope
from lockstep.engine.architectures.routing import route_experts
from lockstep.engine.architectures.step import Step
from lockstep.engine.architectures.tensors import Table, table
from lockstep.engine.hparams import Hparams, Keys
from lockstep.engine.ops.reference import RopeParams
from lockstep.engine.quants.base import F32

TENSORS = table("""
    token_embd.weight         n_vocab   n_embd
    blk.*.attn_norm.weight    n_embd
    blk.*.attn_q.weight       n_embd_q  n_embd
    blk.*.attn_k.weight       n_embd_kv n_embd
    blk.*.attn_v.weight       n_embd_kv n_embd
    blk.*.attn_output.weight  n_embd    n_embd_q
    blk.*.ffn_norm.weight     n_embd
    output_norm.weight        n_embd
    output.weight?            n_vocab   n_embd
    rope_freqs.weight?        n_pairs
""")
DENSE = table("""
    blk.*.ffn_gate.weight  n_ff    n_embd
    blk.*.ffn_up.weight    n_ff    n_embd
    blk.*.ffn_down.weight  n_embd  n_ff
""")
EXPERTS = table("""
    blk.*.ffn_gate_inp.weight   n_expert  n_embd
    blk.*.ffn_gate_exps.weight  n_expert  n_ff    n_embd
    blk.*.ffn_up_exps.weight    n_expert  n_ff    n_embd
    blk.*.ffn_down_exps.weight  n_expert  n_embd  n_ff
""")


class Llama(Architecture, name="llama"):
    halves = False  # True: rope pairs elements half a head apart
    names_sum = True  # True: llama.cpp names the input of the second half of a layer

    @classmethod
    def hparams_of(cls, keys: Keys) -> Hparams:
        n_embd, n_head = keys.positive("embedding_length"), keys.positive("attention.head_count")
        n_embd_head = keys.positive("attention.key_length", n_embd // n_head)
        keys.same("attention.value_length", n_embd_head, "the size of a head")
        keys.same("rope.dimension_count", n_embd_head, "the size of a head")
        return Hparams(**cls.sizes(keys), n_embd_head=n_embd_head)

    @classmethod
    def sizes(cls, keys: Keys) -> dict[str, Any]:
        """Return all hyperparameters except the size of a head."""
        n_head, n_ctx_train = keys.positive("attention.head_count"), keys.positive("context_length")
        return {
            "n_vocab": keys.vocabulary_size(),
            "n_ctx_train": n_ctx_train,
            "n_embd": keys.positive("embedding_length"),
            "n_layer": keys.positive("block_count"),
            "n_ff": cls.n_ff(keys),
            "n_head": n_head,
            "n_head_kv": keys.positive("attention.head_count_kv", n_head),
            "f_norm_rms_eps": keys.get("attention.layer_norm_rms_epsilon", float),
            "rope_freq_base": keys.get("rope.freq_base", float, 10000.0),
            **keys.rope_scaling(n_ctx_train),
            "n_expert": keys.get("expert_count", int, 0),
            "n_expert_used": keys.get("expert_used_count", int, 0),
        }

    @classmethod
    def n_ff(cls, keys: Keys) -> int:
        return keys.positive("feed_forward_length")

    @classmethod
    def table(cls, hparams: Hparams) -> Table:
        return {**TENSORS, **(EXPERTS if hparams.n_expert else DENSE)}

    def rope_params(self, layer: int = 0) -> RopeParams:
        hp, factors = self.hparams, None
        if "rope_freqs.weight" in self.tensors:
            factors = self.tensors["rope_freqs.weight"].values()
        plain = RopeParams(
            hp.n_embd_head, hp.rope_freq_base, hp.rope_freq_scale, factors, self.halves
        )
        return scale_rope(plain, hp.rope_attn_factor, hp.n_ctx_orig_yarn)

    def forward(self, step: Step) -> F32:
        hp, ops, probe, w = self.hparams, step.ops, step.probe, self.tensors
        x = probe("embd", None, ops.get_rows(w["token_embd.weight"], step.batch.tokens))
        for layer in range(hp.n_layer):
            h = self.norm(step, layer, "attn_norm", x)  # (tokens, width)
            h = self.attention(step, layer, h)
            if layer == hp.n_layer - 1:  # from here on, only rows with outputs are needed
                h, x = h[step.batch.outputs], x[step.batch.outputs]
            x = ops.add(h, x)
            x = probe("ffn_inp", layer, x) if self.names_sum else x
            h = self.norm(step, layer, "ffn_norm", x)
            h = (self.experts if hp.n_expert else self.feed_forward)(step, layer, h)
            x = probe("l_out", layer, ops.add(h, x))
        norm = w["output_norm.weight"].values()
        x = probe("result_norm", None, ops.rms_norm(x, norm, hp.f_norm_rms_eps))
        logits: F32 = probe("result_output", None, ops.linear(x, self.head()))
        return logits

    def attention(self, step: Step, layer: int, x: F32) -> F32:
        at, rope = step.batch.positions, self.rope_params(layer)
        q, k, v = self.heads(step, layer, x)
        q = step.probe("Qcur_rope", layer, step.ops.rope(q, at, rope))
        k = step.probe("Kcur_rope", layer, step.ops.rope(k, at, rope))
        out = step.attend(layer, q, k, v, 1 / math.sqrt(self.hparams.n_embd_head))
        return self.linear(step, layer, "attn_out", out, "attn_output")

    def heads(self, step: Step, layer: int, x: F32) -> tuple[F32, F32, F32]:
        """Return queries, keys and values before they are rotated: (tokens, heads, dim) each."""
        hp = self.hparams
        self.compute_together(step, layer, x, "attn_q", "attn_k", "attn_v")
        q = self.linear(step, layer, "Qcur", x, "attn_q").reshape(len(x), hp.n_head, -1)
        k = self.linear(step, layer, "Kcur", x, "attn_k").reshape(len(x), hp.n_head_kv, -1)
        v = self.linear(step, layer, "Vcur", x, "attn_v").reshape(len(x), hp.n_head_kv, -1)
        return q, k, v

    def feed_forward(self, step: Step, layer: int, x: F32, kind: str = "") -> F32:
        self.compute_together(step, layer, x, f"ffn_up{kind}", f"ffn_gate{kind}")
        up = self.linear(step, layer, "ffn_up", x, f"ffn_up{kind}")
        gate = self.linear(step, layer, "ffn_gate", x, f"ffn_gate{kind}")
        h = step.probe("ffn_swiglu", layer, step.ops.swiglu(gate, up))
        return self.linear(step, layer, f"ffn{kind or '_out'}", h, f"ffn_down{kind}")

    def experts(self, step: Step, layer: int, x: F32) -> F32:
        return route_experts(self, step, layer, x)
