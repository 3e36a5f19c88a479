"""gpt2: learned positions, layer norms with biases, one matrix for queries, keys and values, GELU.

From the model's published definition (Radford et al. 2019; GPT2Model of transformers).
"""

import math
from dataclasses import dataclass

from lockstep.engine.architectures.base import Architecture
from lockstep.engine.architectures.step import Step
from lockstep.engine.architectures.tensors import Table, table
from lockstep.engine.errors import InvalidModel
from lockstep.engine.hparams import Hparams, Keys
from lockstep.engine.quants.base import F32

TENSORS = table("""
    token_embd.weight         n_vocab       n_embd
    position_embd.weight      n_ctx_train   n_embd
    blk.*.attn_norm.weight    n_embd
    blk.*.attn_norm.bias      n_embd
    blk.*.attn_qkv.weight     n_embd_qkv    n_embd
    blk.*.attn_qkv.bias       n_embd_qkv
    blk.*.attn_output.weight  n_embd        n_embd
    blk.*.attn_output.bias    n_embd
    blk.*.ffn_norm.weight     n_embd
    blk.*.ffn_norm.bias       n_embd
    blk.*.ffn_up.weight       n_ff          n_embd
    blk.*.ffn_up.bias         n_ff
    blk.*.ffn_down.weight     n_embd        n_ff
    blk.*.ffn_down.bias       n_embd
    output_norm.weight        n_embd
    output_norm.bias          n_embd
    output.weight?            n_vocab       n_embd
""")


@dataclass(frozen=True, kw_only=True)
class Gpt2Hparams(Hparams):
    f_norm_eps: float


class Gpt2(Architecture, name="gpt2"):
    hparams: Gpt2Hparams

    @classmethod
    def hparams_of(cls, keys: Keys) -> Gpt2Hparams:
        n_embd, n_head = keys.positive("embedding_length"), keys.positive("attention.head_count")
        keys.same("attention.head_count_kv", n_head, "the number of heads")
        return Gpt2Hparams(
            n_vocab=keys.vocabulary_size(),
            n_ctx_train=keys.positive("context_length"),
            n_embd=n_embd,
            n_layer=keys.positive("block_count"),
            n_ff=keys.positive("feed_forward_length"),
            n_head=n_head,
            n_head_kv=n_head,
            n_embd_head=n_embd // n_head,
            f_norm_eps=keys.epsilon(),
        )

    @classmethod
    def table(cls, hparams: Hparams) -> Table:
        return TENSORS

    def rope_params(self, layer: int = 0) -> None:
        return None

    def forward(self, step: Step) -> F32:
        hp, ops, probe, batch, w = self.hparams, step.ops, step.probe, step.batch, self.tensors
        if len(batch) and batch.positions.max() >= hp.n_ctx_train:
            raise InvalidModel(
                f"position {batch.positions.max()}: the model has {hp.n_ctx_train} positions"
            )
        x = probe("embd", None, ops.get_rows(w["token_embd.weight"], batch.tokens))
        h = probe("pos_embd", None, ops.get_rows(w["position_embd.weight"], batch.positions))
        x = probe("inpL", None, ops.add(x, h))  # (tokens, width)
        for layer in range(hp.n_layer):
            h = self.layer_norm(step, layer, "attn_norm", x)
            h = self.attention(step, layer, h)
            if layer == hp.n_layer - 1:  # from here on, only rows with outputs are needed
                h, x = h[batch.outputs], x[batch.outputs]
            x = probe("ffn_inp", layer, ops.add(h, x))
            h = self.layer_norm(step, layer, "ffn_norm", x)
            h = self.add_bias(step, layer, "ffn_up", h, "ffn_up", "ffn_up_b")
            h = probe("ffn_gelu", layer, ops.gelu(h))
            h = self.add_bias(step, layer, "ffn_down", h, "ffn_down", "ffn_out")
            x = probe("l_out", layer, ops.add(h, x))
        norm, bias = (w[f"output_norm.{part}"].values() for part in ("weight", "bias"))
        x = probe("result_norm", None, ops.layer_norm(x, norm, bias, hp.f_norm_eps))
        logits: F32 = probe("result_output", None, ops.linear(x, self.head()))
        return logits

    def layer_norm(self, step: Step, layer: int, name: str, x: F32) -> F32:
        parts = (self.tensors.in_layer(layer, f"{name}.{part}") for part in ("weight", "bias"))
        weight, bias = (part.values() for part in parts)
        h = step.ops.layer_norm(x, weight, bias, self.hparams.f_norm_eps)
        out: F32 = step.probe(name, layer, h)
        return out

    def attention(self, step: Step, layer: int, x: F32) -> F32:
        hp = self.hparams
        qkv = self.add_bias(step, layer, "wqkv", x, "attn_qkv", "wqkv_b")
        parts = qkv.reshape(len(x), 3, hp.n_head, hp.n_embd_head)
        q, k, v = (parts[:, i] for i in range(3))
        out = step.attend(layer, q, k, v, 1 / math.sqrt(hp.n_embd_head))
        return self.add_bias(step, layer, "attn_out", out, "attn_output", "")
