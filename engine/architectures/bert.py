"""bert: every token sees all tokens of its batch, norms come after sums, and results are
embeddings.

From the published definition (Devlin et al. 2018; BertEmbeddings, -SelfAttention and -Layer of
transformers; pooling of sentence-transformers). The published GELU uses erf; engines of GGUF files
use the tanh formula. All tokens are of the first type. Ranking heads are not covered.
"""

import math
from dataclasses import dataclass

import numpy as np

from lockstep.engine.architectures.base import Architecture
from lockstep.engine.architectures.step import Step
from lockstep.engine.architectures.tensors import Table, table
from lockstep.engine.errors import InvalidModel, Unsupported
from lockstep.engine.hparams import Hparams, Keys
from lockstep.engine.quants.base import F32

TENSORS = table("""
    token_embd.weight              n_vocab       n_embd
    position_embd.weight           n_ctx_train   n_embd
    token_types.weight             n_types       n_embd
    token_embd_norm.weight         n_embd
    token_embd_norm.bias           n_embd
    blk.*.attn_q.weight            n_embd        n_embd
    blk.*.attn_q.bias              n_embd
    blk.*.attn_k.weight            n_embd        n_embd
    blk.*.attn_k.bias              n_embd
    blk.*.attn_v.weight            n_embd        n_embd
    blk.*.attn_v.bias              n_embd
    blk.*.attn_output.weight       n_embd        n_embd
    blk.*.attn_output.bias         n_embd
    blk.*.attn_output_norm.weight  n_embd
    blk.*.attn_output_norm.bias    n_embd
    blk.*.ffn_up.weight            n_ff          n_embd
    blk.*.ffn_up.bias              n_ff
    blk.*.ffn_down.weight          n_embd        n_ff
    blk.*.ffn_down.bias            n_embd
    blk.*.layer_output_norm.weight n_embd
    blk.*.layer_output_norm.bias   n_embd
""")
NONE, MEAN, CLS = 0, 1, 2  # values of pooling_type


@dataclass(frozen=True, kw_only=True)
class BertHparams(Hparams):
    n_types: int
    f_norm_eps: float
    pooling: int


class Bert(Architecture, name="bert"):
    hparams: BertHparams
    embeds = True
    causal = False

    @classmethod
    def hparams_of(cls, keys: Keys) -> BertHparams:
        n_embd, n_head = keys.positive("embedding_length"), keys.positive("attention.head_count")
        keys.same("attention.head_count_kv", n_head, "the number of heads")
        if keys.get("attention.causal", bool, True):
            raise Unsupported("bert.attention.causal is true; known: false")
        pooling = keys.get("pooling_type", int, NONE)
        if pooling not in (NONE, MEAN, CLS):
            raise Unsupported(f"bert.pooling_type is {pooling}; known: 0, 1, 2")
        return BertHparams(
            n_vocab=keys.vocabulary_size(),
            n_ctx_train=keys.positive("context_length"),
            n_embd=n_embd,
            n_layer=keys.positive("block_count"),
            n_ff=keys.positive("feed_forward_length"),
            n_head=n_head,
            n_head_kv=n_head,
            n_embd_head=n_embd // n_head,
            n_types=keys.token_types(),
            f_norm_eps=keys.epsilon(),
            pooling=pooling,
        )

    @classmethod
    def table(cls, hparams: Hparams) -> Table:
        return TENSORS

    def rope_params(self, layer: int = 0) -> None:
        return None

    def forward(self, step: Step) -> F32:
        """Compute embeddings: (tokens, width), or (sequences, width) if they are pooled."""
        hp, ops, probe, batch, w = self.hparams, step.ops, step.probe, step.batch, self.tensors
        if len(batch) and batch.positions.max() >= hp.n_ctx_train:
            raise InvalidModel(
                f"position {batch.positions.max()}: the model has {hp.n_ctx_train} positions"
            )
        x = probe("embd", None, ops.get_rows(w["token_embd.weight"], batch.tokens))
        x = ops.add(x, w["token_types.weight"].rows(0, 1))
        h = ops.get_rows(w["position_embd.weight"], batch.positions)
        x = probe("inp_embd", None, ops.add(h, x))  # (tokens, width)
        norm, bias = (w[f"token_embd_norm.{part}"].values() for part in ("weight", "bias"))
        x = probe("inp_norm", 0, ops.layer_norm(x, norm, bias, hp.f_norm_eps))
        for layer in range(hp.n_layer):
            h = self.attention(step, layer, x)
            x = self.layer_norm(step, layer, "attn_output_norm", ops.add(h, x))
            x = probe("ffn_inp", layer, x)
            h = self.add_bias(step, layer, "ffn_up", x, "ffn_up", "ffn_up_b")
            h = probe("ffn_gelu", layer, ops.gelu(h))
            h = self.add_bias(step, layer, "ffn_down", h, "ffn_down", "ffn_out")
            x = self.layer_norm(step, layer, "layer_output_norm", ops.add(h, x))
        pooled: F32 = probe("result_embd_pooled", None, self.pool_rows(step, x))
        return pooled

    def layer_norm(self, step: Step, layer: int, name: str, x: F32) -> F32:
        parts = (self.tensors.in_layer(layer, f"{name}.{part}") for part in ("weight", "bias"))
        weight, bias = (part.values() for part in parts)
        return step.ops.layer_norm(x, weight, bias, self.hparams.f_norm_eps)

    def attention(self, step: Step, layer: int, x: F32) -> F32:
        hp = self.hparams
        q, k, v = (
            self.add_bias(step, layer, f"{name}cur", x, f"attn_{name.lower()}", f"{name}cur ADD")
            for name in "QKV"
        )
        q, k, v = (part.reshape(len(x), hp.n_head, -1) for part in (q, k, v))
        out = step.attend(layer, q, k, v, 1 / math.sqrt(hp.n_embd_head))
        # without flash attention, there are two nodes of that name
        summed = "kqv_out" if step.flash_attn else "kqv_out ADD"
        return self.add_bias(step, layer, "attn_out", out, "attn_output", summed)

    def pool_rows(self, step: Step, x: F32) -> F32:
        """Return the mean of each sequence, or the row of its first token."""
        if self.hparams.pooling == NONE:
            return x
        x = step.probe("result_embd", None, x)
        batch, rows = step.batch, []
        for seq in np.unique(batch.seq_ids):
            own = np.flatnonzero(batch.seq_ids == seq)
            first = own[batch.positions[own].argmin()]
            rows.append(step.ops.mean(x[own]) if self.hparams.pooling == MEAN else x[first])
        return np.stack(rows)
