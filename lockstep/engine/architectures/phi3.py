"""phi3: llama with queries, keys and values in one matrix, gate and up in another.

From the model's published definition (Phi-3 technical report; Phi3Attention and Phi3MLP of
transformers). Files with factors for long contexts (rope_factors_long, _short) are not covered.
"""

import math

import numpy as np

from lockstep.engine.architectures.llama import Llama
from lockstep.engine.architectures.step import Step
from lockstep.engine.architectures.tensors import Table, table
from lockstep.engine.hparams import Hparams
from lockstep.engine.quants.base import F32

TENSORS = table("""
    token_embd.weight         n_vocab     n_embd
    blk.*.attn_norm.weight    n_embd
    blk.*.attn_qkv.weight     n_embd_qkv  n_embd
    blk.*.attn_output.weight  n_embd      n_embd_q
    blk.*.ffn_norm.weight     n_embd
    blk.*.ffn_up.weight       n_gate_up   n_embd
    blk.*.ffn_down.weight     n_embd      n_ff
    output_norm.weight        n_embd
    output.weight?            n_vocab     n_embd
""")


class Phi3(Llama, name="phi3"):
    halves = True
    names_sum = False
    # llama.cpp reads the window and does without it (its pull request 13676)
    ignored = Llama.ignored | {"attention.sliding_window"}

    @classmethod
    def table(cls, hparams: Hparams) -> Table:
        return TENSORS

    def attention(self, step: Step, layer: int, x: F32) -> F32:
        hp, at, rope = self.hparams, step.batch.positions, self.rope_params(layer)
        qkv = self.linear(step, layer, "wqkv", x, "attn_qkv")
        ends = (hp.n_embd_q, hp.n_embd_q + hp.n_embd_kv)
        q, k, v = (part.reshape(len(x), -1, hp.n_embd_head) for part in np.split(qkv, ends, axis=1))
        q = step.probe("Qcur_rope", layer, step.ops.rope(q, at, rope))
        k = step.probe("Kcur_rope", layer, step.ops.rope(k, at, rope))
        q = step.probe("Qcur SCALE", layer, step.ops.scale(q, 1 / math.sqrt(hp.n_embd_head)))
        out = step.attend(layer, q, k, v, 1.0)
        return self.linear(step, layer, "attn_out", out, "attn_output")

    def feed_forward(self, step: Step, layer: int, x: F32, kind: str = "") -> F32:
        both = self.linear(step, layer, "ffn_up", x, f"ffn_up{kind}")
        gate, up = np.split(both, 2, axis=1)
        h = step.probe("ffn_swiglu", layer, step.ops.swiglu(gate, up))
        return self.linear(step, layer, "ffn_out", h, f"ffn_down{kind}")
