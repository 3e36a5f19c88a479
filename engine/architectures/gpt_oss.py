"""gpt-oss: a sink in every head's attention, a window in every other layer, experts with biases.

From the published definition (gpt-oss model card; openai/gpt-oss torch/model.py; GptOssAttention,
-Experts and -TopKRouter of transformers). In the definition, the ramp of YaRN ends between pairs. A
GGUF file cannot express this: its ramp ends at whole pairs.
"""

import math
from dataclasses import asdict, dataclass

from lockstep.engine.architectures.llama import EXPERTS
from lockstep.engine.architectures.qwen2 import BIASES, Qwen2
from lockstep.engine.architectures.step import Step
from lockstep.engine.architectures.tensors import Table, table
from lockstep.engine.hparams import Hparams, Keys
from lockstep.engine.ops.reference import I32
from lockstep.engine.quants.base import F32

TENSORS = table("""
    token_embd.weight               n_vocab    n_embd
    blk.*.attn_norm.weight          n_embd
    blk.*.attn_q.weight             n_embd_q   n_embd
    blk.*.attn_k.weight             n_embd_kv  n_embd
    blk.*.attn_v.weight             n_embd_kv  n_embd
    blk.*.attn_sinks.weight         n_head
    blk.*.attn_output.weight        n_embd     n_embd_q
    blk.*.attn_output.bias          n_embd
    blk.*.post_attention_norm.weight n_embd
    blk.*.ffn_gate_inp.bias         n_expert
    blk.*.ffn_gate_exps.bias        n_expert   n_ff
    blk.*.ffn_up_exps.bias          n_expert   n_ff
    blk.*.ffn_down_exps.bias        n_expert   n_embd
    output_norm.weight              n_embd
    output.weight                   n_vocab    n_embd
""")


@dataclass(frozen=True, kw_only=True)
class GptOssHparams(Hparams):
    n_swa: int  # number of tokens that a layer with a window sees, including the current one

    def window(self, layer: int) -> int:
        return self.n_swa if layer % 2 == 0 else 0


class GptOss(Qwen2, name="gpt-oss"):
    hparams: GptOssHparams

    @classmethod
    def hparams_of(cls, keys: Keys) -> GptOssHparams:
        plain = super().hparams_of(keys)
        keys.same_scale_in_windows()
        n_swa = keys.positive("attention.sliding_window")
        return GptOssHparams(**asdict(plain), n_swa=n_swa)

    @classmethod
    def n_ff(cls, keys: Keys) -> int:
        """Return the feed-forward length of one expert; the dense key must have the same value."""
        n_ff = keys.positive("expert_feed_forward_length")
        keys.same("feed_forward_length", n_ff, "the length of an expert")
        return n_ff

    @classmethod
    def table(cls, hparams: Hparams) -> Table:
        return {**TENSORS, **BIASES, **EXPERTS}

    def window(self, layer: int) -> int:
        return self.hparams.window(layer)

    def forward(self, step: Step) -> F32:
        hp, ops, probe, w = self.hparams, step.ops, step.probe, self.tensors
        x = probe("embd", None, ops.get_rows(w["token_embd.weight"], step.batch.tokens))
        for layer in range(hp.n_layer):
            h = self.norm(step, layer, "attn_norm", x)  # (tokens, width)
            x = probe("ffn_inp", layer, ops.add(self.attention(step, layer, h), x))
            h = self.norm(step, layer, "attn_post_norm", x, "post_attention_norm")
            x = probe("l_out", layer, ops.add(self.experts(step, layer, h), x))
        x, norm = x[step.batch.outputs], w["output_norm.weight"].values()
        x = probe("result_norm", None, ops.rms_norm(x, norm, hp.f_norm_rms_eps))
        logits: F32 = probe("result_output", None, ops.linear(x, self.head()))
        return logits

    def attention(self, step: Step, layer: int, x: F32) -> F32:
        hp, w, ops, rope = self.hparams, self.tensors, step.ops, self.rope_params(layer)
        q, k, v = self.heads(step, layer, x)
        q = step.probe("Qcur_rope", layer, ops.rope(q, step.batch.positions, rope))
        k = step.probe("Kcur_rope", layer, ops.rope(k, step.batch.positions, rope))
        sinks = w.in_layer(layer, "attn_sinks.weight").values()  # (heads,)
        scale = 1 / math.sqrt(hp.n_embd_head)
        out = step.attend(layer, q, k, v, scale, hp.window(layer), sinks=sinks)
        return self.add_bias(step, layer, "attn_out MUL_MAT", out, "attn_output", "attn_out")

    def experts(self, step: Step, layer: int, x: F32) -> F32:
        ops, probe = step.ops, step.probe
        # llama.cpp uses this name for the scores of experts, whether they are probabilities or not
        scores = self.add_bias(step, layer, "ffn_moe_logits", x, "ffn_gate_inp", "ffn_moe_probs")
        ids = probe("ffn_moe_topk", layer, ops.top_k(scores, self.hparams.n_expert_used))
        chosen = probe("ffn_moe_weights", layer, ops.pick(scores, ids))  # (tokens, used)
        weights = ops.soft_max(chosen, 1.0, None)
        x = x[:, None, :]  # the same row for each chosen expert
        up = self.by_expert(step, layer, "ffn_moe_up", x, "ffn_up_exps", ids)
        gate = self.by_expert(step, layer, "ffn_moe_gate", x, "ffn_gate_exps", ids)
        h = probe("ffn_moe_swiglu_oai", layer, ops.swiglu_oai(gate, up))  # (tokens, used, n_ff)
        h = self.by_expert(step, layer, "ffn_moe_down", h, "ffn_down_exps", ids)
        h = probe("ffn_moe_weighted", layer, ops.mul(h, weights[..., None]))
        out: F32 = probe("ffn_moe_out", layer, ops.sum_experts(h))
        return out

    def by_expert(self, step: Step, layer: int, site: str, x: F32, name: str, ids: I32) -> F32:
        """Apply to each row the matrix of the expert chosen for it. x: (tokens, used or 1, inputs)
        -> (tokens, used, outputs)"""
        weight, bias = (self.tensors.in_layer(layer, f"{name}.{k}") for k in ("weight", "bias"))
        out = step.probe(site, layer, step.ops.linear_id(x, weight, ids))
        shown: F32 = step.probe(f"{site}_biased", layer, step.ops.add(out, bias.values()[ids]))
        return shown
