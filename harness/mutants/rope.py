"""Mistakes in rotary positions: pairing of elements, angle, position."""

import math
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lockstep.engine.architectures.step import Step
from lockstep.engine.model import Model
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.reference import I32, RopeParams
from lockstep.engine.ops.rotation import frequencies
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.mutants.parts.mistakes import Mistake, Op

Heads = Callable[..., tuple[F32, F32, F32]]
LATER = "text is fine at first and falls apart the longer it gets"
NONSENSE = "text is nonsense from the second token on"
DEPTH = "answers get worse with every hundred tokens of context"


class WrongRope(Mistake):
    """A wrong rotation. `angles` changes the parameters of the rotation, and `positions` changes
    the positions."""

    group = "rope"
    site = "Qcur_rope"

    def rope(self, right: Op, x: F32, at: I32, params: RopeParams) -> F32:
        return right(x, self.positions(at), self.angles(params))

    def angles(self, params: RopeParams) -> RopeParams:
        return params

    def positions(self, at: I32) -> I32:
        return at


# --- pairs --------------------------------------------------------------------------------------


class OtherPairs(WrongRope):
    source = "ik_llama.cpp #2290"
    effect = NONSENSE

    def angles(self, params: RopeParams) -> RopeParams:
        return replace(params, halves=not params.halves)


OtherPairs.add_fault(
    "rope-pairs-for-qwen2",
    "neighbours are rotated as pairs, but qwen2 pairs halves",
    shows_on="arch:qwen2",
)
OtherPairs.add_fault(
    "rope-pairs-for-phi3",
    "neighbours are rotated as pairs, but phi3 pairs halves",
    shows_on="arch:phi3",
)
OtherPairs.add_fault(
    "rope-pairs-for-gpt-oss",
    "neighbours are rotated as pairs, but gpt-oss pairs halves",
    shows_on="arch:gpt-oss",
)
# the rotated values have no name in this graph, so the next node is given
OtherPairs.add_fault(
    "rope-pairs-for-lfm2",
    "neighbours are rotated as pairs, but lfm2 pairs halves",
    shows_on="arch:lfm2",
    site="kq",
)
OtherPairs.add_fault(
    "rope-halves-for-deepseek2",
    "halves are rotated as pairs, but deepseek2 pairs neighbours",
    source="pie #427",
    shows_on="arch:deepseek2",
    site="q_pe",
)


class NotPermuted(WrongRope, name="mutant:rope-rows-not-permuted"):
    """An engine that keeps the rows of Q and K in the order for the other pairing of elements."""

    mistake = "the permutation of the rows of Q and K is skipped when they are repacked"
    effect = NONSENSE
    source = "llama.cpp #22611"
    site = "Qcur"

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        out = right(x, weight)
        if not weight.name.endswith(("attn_q.weight", "attn_k.weight")):
            return out
        heads = out.reshape(len(out), -1, 2, self.loaded.graph.hparams.n_embd_head // 2)
        return heads.swapaxes(2, 3).reshape(out.shape)


class OtherWay(WrongRope, name="mutant:rope-other-way"):
    mistake = "the sine has the wrong sign, so pairs turn the other way"
    effect = NONSENSE

    def rotations(self, right: Op, at: I32, params: RopeParams) -> tuple[F64, F64]:
        cos, sin = right(at, params)
        return cos, -sin


OtherWay.add_fault(
    "rope-rotate-half-sign",
    "rotate_half negates the first half instead of the second",
    shows_on="arch:qwen3",
)


class TableForNeighbours(WrongRope, name="mutant:rope-table-for-neighbours"):
    mistake = "halves are rotated with a table whose entries are repeated side by side"
    effect = NONSENSE
    shows_on = "arch:qwen3"

    def rope(self, right: Op, x: F32, at: I32, params: RopeParams) -> F32:
        both = (np.repeat(t, 2, axis=1)[:, None] for t in self.loaded.ops.rotations(at, params))
        cos, sin = both  # (tokens, 1, dim)
        first, second = np.split(x, 2, axis=-1)
        return (x * cos + np.concatenate([-second, first], axis=-1) * sin).astype(np.float32)


# --- angles -------------------------------------------------------------------------------------


WrongRope.add_fault(
    "rope-base-of-llama",
    "qwen2 is rotated with llama's base, 10000",
    DEPTH,
    shows_on="arch:qwen2",
    angles=lambda self, params: replace(params, base=10000.0),
)
WrongRope.add_fault(
    "rope-base-of-llama3",
    "a base of 500000 is used although the file says 10000",
    DEPTH,
    angles=lambda self, params: replace(params, base=500000.0),
)
WrongRope.add_fault(
    "rope-exponent-halved",
    "pair i has the exponent i / d instead of 2i / d",
    LATER,
    angles=lambda self, params: replace(params, base=math.sqrt(params.base)),
)
WrongRope.add_fault(
    "rope-exponent-in-integers",
    "2i / d is divided in whole numbers, so that every pair turns like the first",
    LATER,
    angles=lambda self, params: replace(params, base=1.0),
)
WrongRope.add_fault(
    "rope-exponent-from-one",
    "frequencies are counted from one, so that the first pair turns too slowly",
    LATER,
    angles=lambda self, params: replace(
        params, scale=params.scale * params.base ** (-2 / params.n_rot)
    ),
)


class TableInBf16(WrongRope, name="mutant:rope-table-bf16"):
    mistake = "cosines and sines are made in the model's type, BF16"
    effect = LATER
    source = "candle #3838"

    def rotations(self, right: Op, at: I32, params: RopeParams) -> tuple[F64, F64]:
        cut = (t.astype(np.float32).view(np.uint32) & 0xFFFF0000 for t in right(at, params))
        cos, sin = (t.astype(np.uint32).view(np.float32).astype(np.float64) for t in cut)
        return cos, sin


class AnglesInHalf(WrongRope, name="mutant:rope-angles-f16"):
    mistake = "inverse frequencies are stored in F16"
    effect = LATER

    def rotations(self, right: Op, at: I32, params: RopeParams) -> tuple[F64, F64]:
        step = frequencies(params).astype(np.float16).astype(np.float64) * params.scale
        return np.cos(at[:, None] * step), np.sin(at[:, None] * step)


WrongRope.add_fault(
    "rope-linear-scale-inverted",
    "positions are multiplied by the scaling factor, not divided",
    NONSENSE,
    shows_on="q4_0",
    angles=lambda self, params: replace(params, scale=1 / params.scale),
)
WrongRope.add_fault(
    "rope-linear-scale-twice",
    "the scaling factor is applied to both frequencies and positions",
    LATER,
    shows_on="q4_0",
    angles=lambda self, params: replace(params, scale=params.scale**2),
)


class ScaleOfBase(WrongRope, name="mutant:rope-linear-scale-as-ntk"):
    mistake = "a linear scaling factor stretches the base, as NTK-aware scaling does"
    effect = LATER
    shows_on = "q4_0"

    def angles(self, params: RopeParams) -> RopeParams:
        grown = (1 / params.scale) ** (params.n_rot / (params.n_rot - 2))
        return replace(params, scale=1.0, base=params.base * grown)


WrongRope.add_fault(
    "rope-factors-multiplied",
    "frequencies are multiplied by rope_freqs, not divided",
    LATER,
    shows_on="bf16",
    angles=lambda self, params: replace(params, factors=np.float32(1) / params.factors),
)
WrongRope.add_fault(
    "rope-factors-backwards",
    "the first of rope_freqs is applied to the slowest pair",
    LATER,
    shows_on="bf16",
    angles=lambda self, params: replace(params, factors=params.factors[::-1].copy()),
)


class FactorsOfQueries(WrongRope, name="mutant:rope-factors-of-queries-alone"):
    mistake = "only frequencies of queries are divided by rope_freqs, not those of keys"
    effect = LATER
    shows_on = "bf16"
    site = "Kcur_rope"

    def rope(self, right: Op, x: F32, at: I32, params: RopeParams) -> F32:
        hp = self.loaded.graph.hparams
        assert hp.n_head_kv != hp.n_head
        keys = x.shape[1] == hp.n_head_kv
        return right(x, at, replace(params, factors=None) if keys else params)


class ShortFactors(WrongRope, name="mutant:rope-short-factors-alone"):
    mistake = "the factors of short contexts are used for long contexts too"
    effect = "text falls apart beyond the model's original context"
    source = "unsloth #1193"
    shows_on = "phi3-long-factors"

    def change(self, model: Model) -> None:
        model.graph.n_ctx = 0


class LongFactors(WrongRope, name="mutant:rope-long-factors-alone"):
    mistake = "the factors of long contexts are used for short contexts too"
    effect = LATER
    shows_on = "phi3-short-factors"

    def change(self, model: Model) -> None:
        model.graph.n_ctx = sys.maxsize


WrongRope.add_fault(
    "rope-whole-positions",
    "positions are divided by the scaling factor in whole numbers",
    DEPTH,
    shows_on="q4_0",
    rope=lambda self, right, x, at, params: right(
        x, at // round(1 / params.scale), replace(params, scale=1.0)
    ),
)


# --- elements and positions ---------------------------------------------------------------------


class HalfTheHead(WrongRope, name="mutant:rope-half-the-head"):
    mistake = "only the first half of a head is rotated"
    effect = NONSENSE

    def angles(self, params: RopeParams) -> RopeParams:
        return replace(params, n_rot=params.n_rot // 2)


class LastHalfOfHead(HalfTheHead, name="mutant:rope-last-half-of-the-head"):
    mistake = "only the last half of a head is rotated"

    def rope(self, right: Op, x: F32, at: I32, params: RopeParams) -> F32:
        fixed, turned = np.split(x, 2, axis=-1)
        return np.concatenate([fixed, right(turned, at, self.angles(params))], axis=-1)


WrongRope.add_fault(
    "rope-keys-not-rotated",
    "keys go into the cache without being rotated",
    NONSENSE,
    site="Kcur_rope",
    rope=lambda self, right, x, at, params: (
        x if (x.shape[1] == self.loaded.graph.hparams.n_head_kv) else right(x, at, params)
    ),
)
WrongRope.add_fault(
    "rope-keys-one-late",
    "keys are rotated by the position of the next token",
    LATER,
    source="onnxruntime-genai #2354",
    site="Kcur_rope",
    rope=lambda self, right, x, at, params: right(
        x, at + (x.shape[1] == self.loaded.graph.hparams.n_head_kv), params
    ),
)


class ValuesRotated(WrongRope, name="mutant:rope-of-values"):
    mistake = "values are rotated like keys"
    effect = NONSENSE
    site = "v_cache"

    def graph_heads(self, right: Heads, step: Step, layer: int, x: F32) -> tuple[F32, F32, F32]:
        q, k, v = right(step, layer, x)
        params = self.loaded.graph.rope_params(layer)
        assert params is not None
        return q, k, step.ops.rope(v, step.batch.positions, params)


WrongRope.add_fault(
    "rope-restarts-with-batch",
    "positions are counted from the beginning of each batch",
    "the prompt is understood, but generated tokens have no order",
    positions=lambda self, at: np.arange(len(at), dtype=np.int32),
)
WrongRope.add_fault(
    "rope-restarts-with-ubatch",
    "positions are counted from the beginning of each ubatch of 64",
    "prompts of more than an ubatch are garbled",
    positions=lambda self, at: at % 64,
)
WrongRope.add_fault(
    "rope-later-batches-late",
    "from the second batch on, positions are too large by one",
    "the prompt is understood, but generated text is a little off",
    positions=lambda self, at: at + np.int32(at[0] > 0),
)
WrongRope.add_fault(
    "rope-second-prompt-late",
    "positions of several tokens after a filled cache are too large by one",
    "the second question of a conversation is understood a little worse",
    positions=lambda self, at: at + np.int32(at[0] > 0 and len(at) > 1),
)
WrongRope.add_fault(
    "rope-positions-bf16",
    "positions are stored in BF16, which counts by two from 256 on",
    "fine up to 256 tokens, then worse and worse",
    positions=lambda self, at: (
        (at.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.int32)
    ),
)


class TableTooShort(WrongRope, name="mutant:rope-table-too-short"):
    mistake = "positions beyond the table of 128 rows use its last row"
    effect = "fine up to 128 tokens, then every token has the same position"

    def positions(self, at: I32) -> I32:
        return np.minimum(at, 127)


WrongRope.add_fault(
    "rope-one-position-for-the-batch",
    "all tokens of a prompt are rotated by the first one's position",
    "the order of the words of a prompt is lost",
    positions=lambda self, at: np.broadcast_to(at[:1], at.shape),
)


class QueriesTwice(WrongRope, name="mutant:rope-queries-twice"):
    mistake = "queries are rotated in place, and again by the attention kernel"
    effect = NONSENSE

    def rope(self, right: Op, x: F32, at: I32, params: RopeParams) -> F32:
        out = right(x, at, params)
        is_query = x.shape[1] != self.loaded.graph.hparams.n_head_kv
        return right(out, at, params) if is_query else out


RopeHalfSplit = WrongRope.add_fault(
    "rope-half-split",
    "rope on half-split pairs",
    "plausible for a few tokens, then word salad",
    first_of_all=True,
    angles=lambda self, params: replace(params, halves=not params.halves),
)
# only distances matter, so logits stay the same, and only the trace shows the mistake
WrongRope.add_fault(
    "rope-position-off-by-one",
    "rope position off by one",
    "no effect until a cache of another engine is loaded",
    first_of_all=True,
    moves_logits=False,
    positions=lambda self, at: at + 1,
)
