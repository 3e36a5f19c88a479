"""phi3: llama with one matrix for queries, keys and values, and one matrix for gate and up.

From the model's published definition (Phi-3 technical report; Phi3Attention and Phi3MLP of
transformers), and get_rope_factors of llama.cpp: frequencies have other factors if the context is
longer than in the model's first training.
"""

import math
from dataclasses import dataclass

import numpy as np

from lockstep.engine.architectures.llama import Llama
from lockstep.engine.architectures.positions import scale_rope
from lockstep.engine.architectures.step import Step
from lockstep.engine.architectures.tensors import Table, table
from lockstep.engine.errors import InvalidModel
from lockstep.engine.hparams import Hparams, Keys
from lockstep.engine.ops.reference import RopeParams
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
    rope_factors_long.weight?   n_pairs
    rope_factors_short.weight?  n_pairs
""")


@dataclass(frozen=True, kw_only=True)
class Phi3Hparams(Hparams):
    n_rot: int  # number of elements of a head that are rotated, which are the first
    n_ctx_orig: int  # longer contexts use the long factors

    @property
    def n_pairs(self) -> int:
        return self.n_rot // 2

    def check(self, arch: str) -> None:
        super().check(arch)
        if self.n_rot % 2 or self.n_rot > self.n_embd_head:
            text = f"an even number up to {self.n_embd_head}"
            raise InvalidModel(f"{arch}.rope.dimension_count is {self.n_rot}; expected {text}")


class Phi3(Llama, name="phi3"):
    halves = True
    names_sum = False
    # llama.cpp reads the window but ignores it (its pull request 13676)
    ignored = Llama.ignored | {"attention.sliding_window"}

    hparams: Phi3Hparams

    @classmethod
    def hparams_of(cls, keys: Keys) -> Phi3Hparams:
        sizes = cls.sizes(keys)
        n_embd_head = keys.positive("attention.key_length", sizes["n_embd"] // sizes["n_head"])
        keys.same("attention.value_length", n_embd_head, "the size of a head")
        n_ctx_train = sizes["n_ctx_train"]
        return Phi3Hparams(
            **sizes,
            n_embd_head=n_embd_head,
            n_rot=keys.positive("rope.dimension_count", n_embd_head),
            n_ctx_orig=keys.get("rope.scaling.original_context_length", int, n_ctx_train),
        )

    @classmethod
    def table(cls, hparams: Hparams) -> Table:
        return TENSORS

    def rope_params(self, layer: int = 0) -> RopeParams:
        hp = self.hparams
        name = f"rope_factors_{'long' if self.n_ctx > hp.n_ctx_orig else 'short'}.weight"
        factors = self.tensors[name].values() if name in self.tensors else None
        plain = RopeParams(hp.n_rot, hp.rope_freq_base, hp.rope_freq_scale, factors, self.halves)
        return scale_rope(plain, hp.rope_attn_factor, hp.n_ctx_orig_yarn)

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
