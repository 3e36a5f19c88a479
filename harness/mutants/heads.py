"""Mistakes in heads: their grouping, order, biases and norms."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.architectures.llama import Llama
from lockstep.engine.architectures.step import Step
from lockstep.engine.ops.near import F64
from lockstep.engine.quants.base import F32
from lockstep.harness.mutants.parts.mistakes import Mistake, Op

Spread = Callable[..., F64]
VAGUE = "text is fluent but off topic"
NONSENSE = "text is nonsense from the first token on"


class WrongHeads(Mistake):
    group = "attention"
    effect = VAGUE


class WrongSpread(WrongHeads):
    """A wrong assignment of keys and values to heads. `spread` returns the keys or values of each
    head: (heads, cells, dim)."""

    site = "kq"
    first_of_all = True

    def make_ops(self) -> Any:
        ops: Any = super().make_ops()
        ops.flash = None  # fused attention has no place for this mistake
        return ops

    def spread(self, right: Spread, kv: NDArray[Any], n_head: int) -> F64:
        raise NotImplementedError


class KvHeadModulo(WrongSpread, name="mutant:kv-head-modulo"):
    mistake = "query heads are mapped to KV heads by modulo"
    effect = "fluent nonsense in models with fewer KV heads"

    def spread(self, right: Spread, kv: NDArray[Any], n_head: int) -> F64:
        wide = kv.astype(np.float64).transpose(1, 0, 2)
        return np.tile(wide, (n_head // kv.shape[1], 1, 1))


class LastKvHeadDropped(WrongSpread, name="mutant:last-kv-head-dropped"):
    mistake = "the last KV head is dropped"
    effect = "a share of the heads is silent; the text wanders"

    def spread(self, right: Spread, kv: NDArray[Any], n_head: int) -> F64:
        wide = right(kv, n_head)
        wide[-(n_head // kv.shape[1]) :] = 0
        return wide


WrongHeads.add_fault(
    "value-heads-by-modulo",
    "keys are shared by heads in runs, values by h modulo the number of KV heads",
    source="candle #3838",
    site="kqv_out",
    kqv=lambda self, right, p, v: right(p, np.tile(v, (1, len(p) // v.shape[1], 1))),
)
WrongHeads.add_fault(
    "first-kv-head-for-all",
    "all heads attend to the keys of the first KV head",
    site="kq",
    kq=lambda self, right, q, k: right(q, k[:, :1]),
)


class LastHeadDropped(WrongHeads, name="mutant:last-head-dropped"):
    mistake = "the result of the last head is zero"
    site = "kqv_out"

    def kqv(self, right: Op, p: F32, v: Any) -> F32:
        out = right(p, v)
        out[:, -v.shape[-1] :] = 0
        return out


class HeadsInterleaved(WrongHeads, name="mutant:heads-interleaved"):
    mistake = "results of heads are interleaved element by element"
    effect = NONSENSE
    site = "kqv_out"

    def kqv(self, right: Op, p: F32, v: Any) -> F32:
        out = right(p, v)
        return out.reshape(len(out), len(p), -1).swapaxes(1, 2).reshape(out.shape)


class SplitByHead(WrongHeads, name="mutant:qkv-split-by-head"):
    mistake = "gpt2's joint matrix is read as queries, keys and values of each head in turn"
    effect = NONSENSE
    shows_on = "arch:gpt2"
    site = "kq"

    def graph_add_bias(
        self, right: Op, step: Step, layer: int, site: str, x: F32, *names: str
    ) -> F32:
        out = right(step, layer, site, x, *names)
        if names[0] != "attn_qkv":
            return out
        hp = self.loaded.graph.hparams
        by_head = out.reshape(len(x), hp.n_head, 3, hp.n_embd_head)
        return by_head.swapaxes(1, 2).reshape(out.shape)


# --- biases -------------------------------------------------------------------------------------


class HeadBiasMissing(WrongHeads):
    effect = NONSENSE
    shows_on = "arch:qwen2"
    missing: str

    def graph_add_bias(
        self, right: Op, step: Step, layer: int, site: str, x: F32, name: str, summed: str
    ) -> F32:
        if name != self.missing:
            return right(step, layer, site, x, name, summed)
        out = self.loaded.graph.linear(step, layer, site, x, name)
        return step.probe(summed, layer, out) if summed else out


HeadBiasMissing.add_fault(
    "query-bias-missing", "the bias of queries is not added", site="Qcur ADD", missing="attn_q"
)
HeadBiasMissing.add_fault(
    "key-bias-missing", "the bias of keys is not added", site="Kcur ADD", missing="attn_k"
)
HeadBiasMissing.add_fault(
    "value-bias-missing", "the bias of values is not added", site="Vcur ADD", missing="attn_v"
)
HeadBiasMissing.add_fault(
    "attention-output-bias-missing",
    "the bias after attention is not added",
    shows_on="arch:gpt-oss",
    site="attn_out",
    missing="attn_output",
)
HeadBiasMissing.add_fault(
    "qkv-bias-missing",
    "the bias of queries, keys and values of gpt2 is not added",
    shows_on="arch:gpt2",
    site="wqkv_b",
    missing="attn_qkv",
)


class BiasesOverwrite(WrongHeads, name="mutant:biases-by-order-of-loading"):
    mistake = "the bias of keys overwrites the bias of queries, which was loaded before"
    effect = NONSENSE
    source = "imp #690"
    shows_on = "arch:qwen2"
    site = "Qcur ADD"

    def graph_add_bias(
        self, right: Op, step: Step, layer: int, site: str, x: F32, name: str, summed: str
    ) -> F32:
        if name != "attn_q":
            return right(step, layer, site, x, name, summed)
        out = self.loaded.graph.linear(step, layer, site, x, name)
        bias = self.loaded.graph.tensors.in_layer(layer, "attn_k.bias").values()
        out = step.ops.add(out, np.resize(bias, out.shape[-1]))
        return step.probe(summed, layer, out)


# --- norms of heads -----------------------------------------------------------------------------


class Normed(WrongHeads):
    shows_on = "arch:qwen3"
    site = "Qcur_normed"

    def graph_norm(
        self, right: Op, step: Step, layer: int, site: str, x: F32, name: str = ""
    ) -> F32:
        if name not in ("attn_q_norm", "attn_k_norm"):
            return right(step, layer, site, x, name)
        return self.norm_of_heads(right, step, layer, site, x, name)

    def norm_of_heads(self, right: Op, step: Step, layer: int, site: str, x: F32, name: str) -> F32:
        raise NotImplementedError


Normed.add_fault(
    "query-norm-missing",
    "queries of heads are not normed",
    norm_of_heads=lambda self, right, step, layer, site, x, name: (
        step.probe(site, layer, x) if "q" in name else right(step, layer, site, x, name)
    ),
)


class KeyNormMissing(Normed, name="mutant:key-norm-missing"):
    mistake = "keys of heads are not normed"
    site = "Kcur_normed"

    def norm_of_heads(self, right: Op, step: Step, layer: int, site: str, x: F32, name: str) -> F32:
        return step.probe(site, layer, x) if "k" in name else right(step, layer, site, x, name)


KeyNormMissing.add_fault(
    "key-norm-missing-gemma3", "keys of heads of gemma3 are not normed", shows_on="arch:gemma3"
)
KeyNormMissing.add_fault(
    "key-norm-missing-lfm2",
    "keys of heads of lfm2 are not normed",
    shows_on="arch:lfm2",
    site="model.layers.{}.self_attn.k_layernorm",
)


class NormAfterRope(WrongHeads, name="mutant:head-norm-after-rope"):
    mistake = "heads are rotated before they are normed"
    shows_on = "arch:qwen3"
    site = "Qcur_normed"

    def graph_attention(self, right: Op, step: Step, layer: int, x: F32) -> F32:
        graph: Any = self.loaded.graph
        at, rope, ops = step.batch.positions, graph.rope_params(layer), step.ops
        q, k, v = Llama.heads(graph, step, layer, x)
        q = graph.norm(step, layer, "Qcur_normed", ops.rope(q, at, rope), "attn_q_norm")
        k = graph.norm(step, layer, "Kcur_normed", ops.rope(k, at, rope), "attn_k_norm")
        q, k = step.probe("Qcur_rope", layer, q), step.probe("Kcur_rope", layer, k)
        out = step.attend(layer, q, k, v, graph.hparams.n_embd_head**-0.5)
        return self.loaded.graph.linear(step, layer, "attn_out", out, "attn_output")


class OrderOfPhi3(WrongHeads, name="mutant:qkv-order-of-phi3"):
    mistake = "phi3's joint matrix is read in the order keys, queries, values"
    effect = NONSENSE
    shows_on = "arch:phi3"
    site = "Qcur_rope"

    def graph_linear(self, right: Op, step: Step, layer: int, site: str, x: F32, name: str) -> F32:
        out = right(step, layer, site, x, name)
        if name != "attn_qkv":
            return out
        n_kv = self.loaded.graph.hparams.n_embd_kv
        k, q, v = np.split(out, [n_kv, out.shape[1] - n_kv], axis=1)
        return np.concatenate([q, k, v], axis=1)
