"""Mistakes in latent attention, in which deepseek2 stores one narrow vector per token for all
heads."""

from typing import Any

import numpy as np

from lockstep.engine.architectures.step import Step
from lockstep.engine.ops.reference import I32, Bools, RopeParams
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.mutants.parts.mistakes import Mistake, Op

NONSENSE = "text is nonsense from the second token on"
LATER = "text is fine at first and falls apart the longer it gets"


class Latent(Mistake):
    group = "latent attention"
    effect = NONSENSE
    shows_on = "arch:deepseek2"

    @property
    def hp(self) -> Any:
        return self.loaded.graph.hparams


class KeyPositionFirst(Latent, name="mutant:mla-key-position-first"):
    mistake = "the rotated part of a key is read from the beginning of the cached row"
    site = "kv_cmpr"

    def graph_linear(self, right: Op, step: Step, layer: int, site: str, x: F32, name: str) -> F32:
        out = right(step, layer, site, x, name)
        return np.roll(out, -self.hp.n_rot, axis=1) if name == "attn_kv_a_mqa" else out


class QueryPositionFirst(Latent, name="mutant:mla-query-position-first"):
    mistake = "the rotated part of a query is read from the beginning of a head"
    site = "q_nope_absorbed"

    def graph_queries(self, right: Op, step: Step, layer: int, x: F32) -> F32:
        q = right(step, layer, x)
        heads = q.reshape(len(q), self.hp.n_head, -1)
        return np.roll(heads, -self.hp.n_rot, axis=-1).reshape(q.shape)


Latent.add_fault(
    "mla-key-not-rotated",
    "the shared rotary key is not rotated",
    site="k_pe",
    rope=lambda self, right, x, at, params: x if x.shape[1] == 1 else right(x, at, params),
)


class ExponentOfHead(Latent, name="mutant:mla-frequencies-of-the-head"):
    mistake = "frequencies are those of a whole head, though only a part is rotated"
    effect = LATER
    site = "q_pe"

    def rope(self, right: Op, x: F32, at: I32, params: RopeParams) -> F32:
        share = params.n_rot / (self.hp.n_nope + self.hp.n_rot)
        other = RopeParams(params.n_rot, params.base**share, params.scale, params.factors)
        return right(x, at, other)


# --- norms --------------------------------------------------------------------------------------


class NormMissing(Latent):
    tensor: str

    def graph_norm(
        self, right: Op, step: Step, layer: int, site: str, x: F32, name: str = ""
    ) -> F32:
        if name != self.tensor:
            return right(step, layer, site, x, name)
        return step.probe(site, layer, x)


NormMissing.add_fault(
    "mla-kv-norm-missing",
    "the cached row of a token is not normed",
    site="kv_cmpr",
    tensor="attn_kv_a_norm",
)
NormMissing.add_fault(
    "mla-query-norm-missing",
    "the narrow vector of queries is not normed",
    site="q MUL",
    tensor="attn_q_a_norm",
)


class NormOfAll(Latent, name="mutant:mla-norm-with-position"):
    mistake = "the cached row is normed together with the rotated key"
    site = "kv_cmpr"
    whole = np.zeros((0, 0), np.float32)

    def graph_linear(self, right: Op, step: Step, layer: int, site: str, x: F32, name: str) -> F32:
        out = right(step, layer, site, x, name)
        self.whole = out if name == "attn_kv_a_mqa" else self.whole
        return out

    def graph_norm(
        self, right: Op, step: Step, layer: int, site: str, x: F32, name: str = ""
    ) -> F32:
        if name != "attn_kv_a_norm":
            return right(step, layer, site, x, name)
        own, both = ((part**2).mean(axis=-1, keepdims=True) for part in (x, self.whole))
        weight = self.loaded.graph.tensors.in_layer(layer, f"{name}.weight").values()
        out = step.ops.rms_norm(x, weight, self.hp.f_norm_rms_eps) * np.sqrt(own / both)
        return step.probe(site, layer, out)


# --- scale --------------------------------------------------------------------------------------


Latent.add_fault(
    "mla-scale-of-what-is-kept",
    "scores are scaled by the width of the cached row, not of a head",
    "text is fluent but off topic",
    site="kq_soft_max",
    soft_max=lambda self, right, x, scale, visible: right(
        x, self.hp.n_embd_head**-0.5 if x.ndim == 3 else scale, visible
    ),
)
Latent.add_fault(
    "mla-scale-without-position",
    "scores are scaled by the width of a head without its rotated part",
    "text is fluent but off topic",
    site="kq_soft_max",
    soft_max=lambda self, right, x, scale, visible: right(
        x, self.hp.n_nope**-0.5 if x.ndim == 3 else scale, visible
    ),
)


class MscaleMissing(Latent, name="mutant:mla-mscale-missing"):
    """A missing mscale. It has no effect at position 0, where there is only one score."""

    mistake = "the scale lacks the square of YaRN's mscale"
    effect = LATER
    source = "mobius #548"
    shows_on = "deepseek2-yarn"
    site = "kq_soft_max"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        plain = (self.hp.n_nope + self.hp.n_rot) ** -0.5
        return right(x, plain if x.ndim == 3 else scale, visible)


class MscaleOnce(MscaleMissing, name="mutant:mla-mscale-not-squared"):
    mistake = "YaRN's mscale goes into the scale once, not squared"
    source = "imp #880"

    def soft_max(self, right: Op, x: F32, scale: float, visible: Bools | None) -> F32:
        plain = (self.hp.n_nope + self.hp.n_rot) ** -0.5
        return right(x, (plain * scale) ** 0.5 if x.ndim == 3 else scale, visible)


# --- values and heads ---------------------------------------------------------------------------


class ValuesWithPosition(Latent, name="mutant:mla-values-from-the-end"):
    mistake = "values are the last elements of the cached row, including rotated ones"
    site = "kqv"
    keys: Any

    def kq(self, right: Op, q: F32, k: Any) -> F32:
        self.keys = k
        return right(q, k)

    def kqv(self, right: Op, p: F32, v: Any) -> F32:
        return right(p, self.keys[..., -v.shape[-1] :])


class HeadsBackwards(Latent):
    tensor: str

    def linear_id(self, right: Op, x: F32, weight: Weight, ids: I32) -> F32:
        return right(x, weight, self.wrong(ids) if self.tensor in weight.name else ids)

    def wrong(self, ids: I32) -> I32:
        return ids[:, ::-1].copy()


HeadsBackwards.add_fault(
    "mla-k-b-of-other-heads",
    "queries are multiplied by the matrices of other heads",
    site="q_nope_absorbed",
    tensor="attn_k_b",
)
HeadsBackwards.add_fault(
    "mla-v-b-of-other-heads",
    "the output of attention is multiplied by the matrices of other heads",
    site="kqv_mla",
    tensor="attn_v_b",
)
HeadsBackwards.add_fault(
    "mla-v-b-of-the-first-head",
    "the output of attention is multiplied by the matrix of the first head",
    site="kqv_mla",
    tensor="attn_v_b",
    wrong=lambda self, ids: np.zeros_like(ids),
)
