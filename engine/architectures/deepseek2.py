"""deepseek2: one narrow vector per token is cached for all heads; shared and routed experts.

From the published definition (DeepSeek-V2 and V3 technical reports; DeepseekV3Attention, -MoE and
-TopkRouter of transformers). For inference, the first report merges the matrix that makes keys from
the latent vector into the queries. The matrix that makes values is applied after attention. So a
file stores the two matrices separately (attn_k_b, attn_v_b). Groups of experts are not covered.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from lockstep.engine.architectures.llama import EXPERTS, Llama
from lockstep.engine.architectures.positions import scale_rope
from lockstep.engine.architectures.routing import route_experts
from lockstep.engine.architectures.step import Step
from lockstep.engine.architectures.tensors import Table, table
from lockstep.engine.errors import InvalidModel, Unsupported
from lockstep.engine.hparams import Hparams, Keys
from lockstep.engine.memory.store import KeysValues
from lockstep.engine.ops.reference import RopeParams
from lockstep.engine.quants.base import F32

TENSORS = table("""
    token_embd.weight                    n_vocab      n_embd
    blk.*.attn_norm.weight               n_embd
    blk.*.attn_q_a.weight?narrow         n_lora_q     n_embd
    blk.*.attn_q_a_norm.weight?narrow    n_lora_q
    blk.*.attn_q_b.weight?narrow         n_embd_k     n_lora_q
    blk.*.attn_q.weight?wide             n_embd_k     n_embd
    blk.*.attn_kv_a_mqa.weight           n_embd_head  n_embd
    blk.*.attn_kv_a_norm.weight          n_lora_kv
    blk.*.attn_k_b.weight                n_head       n_lora_kv    n_nope
    blk.*.attn_v_b.weight                n_head       n_head_v     n_lora_kv
    blk.*.attn_output.weight             n_embd       n_embd_v
    blk.*.ffn_norm.weight                n_embd
    blk.*.ffn_gate.weight?dense          n_ff_dense   n_embd
    blk.*.ffn_up.weight?dense            n_ff_dense   n_embd
    blk.*.ffn_down.weight?dense          n_embd       n_ff_dense
    blk.*.exp_probs_b.bias?              n_expert
    blk.*.ffn_gate_shexp.weight?experts  n_ff_shared  n_embd
    blk.*.ffn_up_shexp.weight?experts    n_ff_shared  n_embd
    blk.*.ffn_down_shexp.weight?experts  n_embd       n_ff_shared
    output_norm.weight                   n_embd
    output.weight?                       n_vocab      n_embd
""")
SOFTMAX, SIGMOID = 1, 2  # values of expert_gating_func
GLM_FLASH = ((47, 154880), (48, 154880))  # numbers of layers and of tokens


@dataclass(frozen=True, kw_only=True)
class Deepseek2Hparams(Hparams):
    n_lora_q: int  # 0: queries come from one matrix
    n_lora_kv: int
    n_rot: int
    n_head_v: int
    n_nope: int  # elements of a head that are not rotated
    n_embd_k: int  # elements of all heads together
    n_embd_v: int
    n_layer_dense: int  # the first layers have no experts
    n_ff_dense: int  # n_ff is the size of one expert
    n_ff_shared: int
    gating: int
    norm_weights: bool
    scale_weights: float
    f_mscale: float  # factor of YaRN on the logarithm of the scaling factor

    def check(self, arch: str) -> None:
        super().check(arch)
        if not self.n_expert and self.n_layer_dense < self.n_layer:
            raise InvalidModel(f"{arch}.expert_count is 0, and not all layers are dense")
        if self.n_nope < 1 or self.n_rot % 2:
            raise InvalidModel(
                f"{arch}.rope.dimension_count is {self.n_rot}; expected "
                f"an even number below the size of a head"
            )
        if self.gating not in (SOFTMAX, SIGMOID):
            raise Unsupported(f"{arch}.expert_gating_func is {self.gating}; known: 1, 2")
        # llama.cpp scales scores by the factor of any kind of scaling, which is right only for YaRN
        kinds = {self.rope_freq_scale != 1, self.n_ctx_orig_yarn > 0, self.f_mscale != 0}
        if self.rope_attn_factor != 1 or len(kinds) > 1:
            raise Unsupported(f"{arch}.rope.scaling is not YaRN with a yarn_log_multiplier")


class Deepseek2(Llama, name="deepseek2"):
    hparams: Deepseek2Hparams

    def kinds(self, layer: int) -> tuple[str, ...]:
        """Return the layer's kinds. A layer with a single query matrix is "wide", whatever rank the
        file states.
        """
        wide = not self.hparams.n_lora_q or f"blk.{layer}.attn_q.weight" in self.tensors
        dense = layer < self.hparams.n_layer_dense
        return "wide" if wide else "narrow", "dense" if dense else "experts"

    @classmethod
    def hparams_of(cls, keys: Keys) -> Deepseek2Hparams:
        sizes, n_rot = cls.sizes(keys), keys.positive("rope.dimension_count")
        n_lora_kv = keys.positive("attention.kv_lora_rank")
        n_head_k = keys.positive("attention.key_length_mla")
        n_head_v = keys.positive("attention.value_length_mla")
        keys.same("attention.head_count_kv", 1, "because all heads share the cached vector")
        keys.same("attention.key_length", n_lora_kv + n_rot, "the size of the cached vector")
        keys.same(
            "attention.value_length",
            n_lora_kv,
            "the size of the cached vector without its rotated part",
        )
        for key in ("expert_group_count", "expert_group_used_count"):
            keys.without(key, int, 0, 1)
        # the first files of GLM 4.7 Flash lack the key
        unsaid = SIGMOID if (sizes["n_layer"], sizes["n_vocab"]) in GLM_FLASH else SOFTMAX
        return Deepseek2Hparams(
            **sizes,
            n_embd_head=n_lora_kv + n_rot,
            n_lora_q=keys.get("attention.q_lora_rank", int, 0),
            n_lora_kv=n_lora_kv,
            n_rot=n_rot,
            n_head_v=n_head_v,
            n_nope=n_head_k - n_rot,
            n_embd_k=sizes["n_head"] * n_head_k,
            n_embd_v=sizes["n_head"] * n_head_v,
            n_layer_dense=keys.get("leading_dense_block_count", int, 0),
            n_ff_dense=keys.positive("feed_forward_length"),
            n_ff_shared=sizes["n_ff"] * keys.positive("expert_shared_count"),
            gating=keys.get("expert_gating_func", int, unsaid),
            norm_weights=keys.get("expert_weights_norm", bool, False),
            scale_weights=keys.get("expert_weights_scale", float, 1.0),
            f_mscale=keys.get("rope.scaling.yarn_log_multiplier", float, 0.0),
        )

    @classmethod
    def n_ff(cls, keys: Keys) -> int:
        return keys.positive("expert_feed_forward_length")

    @classmethod
    def table(cls, hparams: Hparams) -> Table:
        return {**TENSORS, **{f"{name}?experts": shape for name, shape in EXPERTS.items()}}

    def rope_params(self, layer: int = 0) -> RopeParams:
        """Return YaRN's rotation with magnitude 1, because the scale factor of the scores includes
        the whole magnitude.
        """
        hp = self.hparams
        plain = RopeParams(hp.n_rot, hp.rope_freq_base, hp.rope_freq_scale, None)
        return replace(scale_rope(plain, 1.0, hp.n_ctx_orig_yarn), magnitude=1.0)

    def memory_of_layer(self, layer: int) -> KeysValues:
        """Return the sizes of the keys. The first elements of a key are its value."""
        return KeysValues(1, self.hparams.n_embd_head, 0)

    def rotated_part(self) -> slice:
        return slice(self.hparams.n_lora_kv, None)

    def attention(self, step: Step, layer: int, x: F32) -> F32:
        hp, ops, at, rope = self.hparams, step.ops, step.batch.positions, self.rope_params()
        q = self.queries(step, layer, x).reshape(len(x), hp.n_head, -1)
        kept = self.linear(step, layer, "kv_cmpr_pe", x, "attn_kv_a_mqa")
        turned = kept[:, None, hp.n_lora_kv :]  # all heads share the rotated key
        turned = step.probe("k_pe", layer, ops.rope(turned, at, rope))
        kept = self.norm(step, layer, "kv_cmpr", kept[:, : hp.n_lora_kv], "attn_kv_a_norm")
        k = step.probe("Kcur", layer, np.concatenate([kept[:, None], turned], axis=-1))
        q_nope = self.by_head(step, layer, "q_nope_absorbed", q[..., : hp.n_nope], "attn_k_b")
        q_turned = step.probe("q_pe", layer, ops.rope(q[..., hp.n_nope :], at, rope))
        q = step.probe("Qcur", layer, np.concatenate([q_nope, q_turned], axis=-1))
        grown = 1 - hp.f_mscale * math.log(hp.rope_freq_scale)
        scale = grown * grown / math.sqrt(hp.n_nope + hp.n_rot)
        out = step.attend(layer, q, k, None, scale, within=hp.n_lora_kv)
        out = out.reshape(len(x), hp.n_head, hp.n_lora_kv)
        flash = "fattn_mla", "fattn_mla (permuted) (cont)"
        own, joined = flash if step.flash_attn else ("kqv_mla", "kqv_out")
        out = self.by_head(step, layer, own, out, "attn_v_b").reshape(len(x), -1)
        out = step.probe(joined, layer, out)
        return self.linear(step, layer, "attn_out", out, "attn_output")

    def queries(self, step: Step, layer: int, x: F32) -> F32:
        if "wide" in self.kinds(layer):
            return self.linear(step, layer, "q", x, "attn_q")
        q = self.linear(step, layer, "q MUL_MAT", x, "attn_q_a")
        q = self.norm(step, layer, "q MUL", q, "attn_q_a_norm")
        return self.linear(step, layer, "q MUL_MAT 2", q, "attn_q_b")

    def by_head(self, step: Step, layer: int, site: str, x: F32, name: str) -> F32:
        """Multiply each head by its own matrix. x: (tokens, heads, inputs) -> (tokens, heads,
        outputs)."""
        weight = self.tensors.in_layer(layer, f"{name}.weight")
        heads = np.broadcast_to(np.arange(x.shape[1], dtype=np.int32), x.shape[:2])
        out = step.ops.linear_id(x, weight, heads).transpose(1, 0, 2)
        shown: F32 = step.probe(site, layer, out)  # (heads, tokens, outputs)
        return shown.transpose(1, 0, 2)

    def experts(self, step: Step, layer: int, x: F32) -> F32:
        """Compute routed experts and the shared one; the first layers have a dense network
        instead.
        """
        if "dense" in self.kinds(layer):
            return self.feed_forward(step, layer, x)
        hp = self.hparams
        chosen = route_experts(
            *(self, step, layer, x),
            sigmoid=hp.gating == SIGMOID,
            normalise=hp.norm_weights,
            scale=hp.scale_weights,
        )
        shared = self.feed_forward(step, layer, x, "_shexp")
        out: F32 = step.probe("ffn_out", layer, step.ops.add(chosen, shared))
        return out
