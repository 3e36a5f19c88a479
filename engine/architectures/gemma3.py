"""gemma3: norms before and after each part, a window in all but every sixth layer, two rope bases.

From the model's published definition (Gemma 3 technical report; gemma_pytorch; Gemma3Attention of
transformers). A GGUF file stores the weights of norms with the paper's 1 already added.
"""

import math
from dataclasses import asdict, dataclass

import numpy as np

from lockstep.engine.architectures.base import Architecture
from lockstep.engine.architectures.llama import DENSE, TENSORS, Llama
from lockstep.engine.architectures.qwen3 import NORMS
from lockstep.engine.architectures.step import Step
from lockstep.engine.architectures.tensors import Table, table
from lockstep.engine.errors import Unsupported
from lockstep.engine.hparams import Hparams, Keys
from lockstep.engine.ops.reference import RopeParams
from lockstep.engine.quants.base import F32

POST_NORMS = table("""
    blk.*.post_attention_norm.weight  n_embd
    blk.*.post_ffw_norm.weight        n_embd
""")
LARGEST = 62  # number of layers of the 27B model, which alone scales scores by the width


@dataclass(frozen=True, kw_only=True)
class Gemma3Hparams(Hparams):
    # number of tokens that a layer with a window sees, including the current one; 0: no windows
    n_swa: int
    # every so many-th layer has no window; or a value for each layer
    windows: int | tuple[bool, ...]
    rope_freq_base_swa: float
    f_final_logit_softcapping: float  # 0: none

    def check(self, arch: str) -> None:
        super().check(arch)
        if self.n_ctx_orig_yarn or self.rope_attn_factor != 1:
            raise Unsupported(f"{arch}.rope.scaling is not by a factor")

    def has_window(self, layer: int) -> bool:
        if not self.n_swa:
            return False
        if isinstance(self.windows, tuple):
            return self.windows[layer]
        return not self.windows or layer % self.windows < self.windows - 1


class Gemma3(Architecture, name="gemma3"):
    hparams: Gemma3Hparams
    post_norm = "ffn_post_norm"  # llama.cpp's name of the second summand at the end of a layer

    @classmethod
    def hparams_of(cls, keys: Keys) -> Gemma3Hparams:
        plain = Llama.hparams_of(keys)
        n_swa = keys.get("attention.sliding_window", int, 0)
        return Gemma3Hparams(
            **asdict(plain),
            n_swa=n_swa,
            windows=keys.windows(plain.n_layer, every=6),
            rope_freq_base_swa=keys.get("rope.freq_base_swa", float, 10000.0),
            f_final_logit_softcapping=keys.get("final_logit_softcapping", float, 0.0),
        )

    @classmethod
    def table(cls, hparams: Hparams) -> Table:
        return {**TENSORS, **NORMS, **POST_NORMS, **DENSE}

    def window(self, layer: int) -> int:
        return self.hparams.n_swa if self.hparams.has_window(layer) else 0

    def rope_params(self, layer: int = 0) -> RopeParams:
        hp = self.hparams
        base, scale = hp.rope_freq_base, hp.rope_freq_scale
        if hp.has_window(layer):  # a window shows only near tokens, so positions are not scaled
            base, scale = hp.rope_freq_base_swa, 1.0
        return RopeParams(hp.n_embd_head, base, scale, None, halves=True)

    def forward(self, step: Step) -> F32:
        hp, ops, probe, w = self.hparams, step.ops, step.probe, self.tensors
        x = probe("embd", None, ops.get_rows(w["token_embd.weight"], step.batch.tokens))
        x = probe("inp_scaled", None, ops.scale(x, np.sqrt(np.float32(hp.n_embd))))
        for layer in range(hp.n_layer):
            h = self.norm(step, layer, "attn_norm", x)  # (tokens, width)
            h = self.attention(step, layer, h)
            if layer == hp.n_layer - 1:  # from here on, only rows with outputs are needed
                h, x = h[step.batch.outputs], x[step.batch.outputs]
            h = self.norm(step, layer, "attn_post_norm", h, "post_attention_norm")
            x = probe("sa_out", layer, ops.add(h, x))
            h = self.norm(step, layer, "ffn_norm", x)
            h = self.feed_forward(step, layer, h)
            h = self.norm(step, layer, self.post_norm, h, "post_ffw_norm")
            x = probe("l_out", layer, ops.add(h, x))
        norm = w["output_norm.weight"].values()
        x = probe("result_norm", None, ops.rms_norm(x, norm, hp.f_norm_rms_eps))
        logits = ops.linear(x, self.head())
        if hp.f_final_logit_softcapping:
            logits = ops.soft_cap(logits, hp.f_final_logit_softcapping)
        shown: F32 = probe("result_output", None, logits)
        return shown

    def attention(self, step: Step, layer: int, x: F32) -> F32:
        hp, at, rope = self.hparams, step.batch.positions, self.rope_params(layer)
        self.compute_together(step, layer, x, "attn_q", "attn_k", "attn_v")
        q = self.linear(step, layer, "Qcur", x, "attn_q").reshape(len(x), hp.n_head, -1)
        k = self.linear(step, layer, "Kcur", x, "attn_k").reshape(len(x), hp.n_head_kv, -1)
        v = self.linear(step, layer, "Vcur", x, "attn_v").reshape(len(x), hp.n_head_kv, -1)
        q = self.norm(step, layer, "Qcur_normed", q, "attn_q_norm")
        k = self.norm(step, layer, "Kcur_normed", k, "attn_k_norm")
        q = step.probe("Qcur_rope", layer, step.ops.rope(q, at, rope))
        k = step.probe("Kcur_rope", layer, step.ops.rope(k, at, rope))
        width = hp.n_embd // hp.n_head if hp.n_layer == LARGEST else hp.n_embd_head
        q = step.ops.scale(q, 1 / math.sqrt(width))
        out = step.attend(layer, q, k, v, 1.0, self.window(layer))
        return self.linear(step, layer, "attn_out", out, "attn_output")

    def feed_forward(self, step: Step, layer: int, x: F32) -> F32:
        self.compute_together(step, layer, x, "ffn_up", "ffn_gate")
        up = self.linear(step, layer, "ffn_up", x, "ffn_up")
        gate = self.linear(step, layer, "ffn_gate", x, "ffn_gate")
        h = step.probe("ffn_geglu", layer, step.ops.geglu(gate, up))
        return self.linear(step, layer, "ffn_out", h, "ffn_down")
