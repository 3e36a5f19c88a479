"""Tests of gemma3's special parts: gated GELU, norms after each half-layer, two rope bases, and a
single KV head."""

from lockstep.harness.acid.measurements.base import AcidPlace, Measurement
from lockstep.harness.acid.measurements.feed_forward import (
    HALF_BF16,
    FeedForward,
    GateAndUp,
    Layers,
    Silu,
)
from lockstep.harness.acid.measurements.normed_heads import (
    LESS,
    SCORE,
    STRETCH,
    QueryNorm,
    apart,
    share,
)
from lockstep.harness.acid.measurements.rope import Base
from lockstep.harness.acid.measurements.scores import ScoreScale
from lockstep.harness.acid.normed_heads import NormedHeads
from lockstep.harness.acid.sandwich import Sandwich
from lockstep.harness.acid.weights import SMALL, AcidWeights


class Geglu(Silu):
    """GELU at -1.25, where other activations differ most, and at 6, where a clamp shows."""

    name = "gelu"
    sees = "the activation of the feed-forward network is GELU, below zero and at 6"
    right = (-0.3965, 1.0)  # 3 * gelu(-1.25), gelu(6) / 6
    wrong = (
        ("SiLU", (-0.8325, 0.9975)),
        ("ReLU", (0.0, 1.0)),
        ("sigmoid, without the gate", (0.668, 0.1663)),
        ("no activation", (-3.75, 1.0)),
        ("clamped", (-0.476, 0.14)),
    )
    radius = 7 * HALF_BF16
    catches = ("silu-for-gelu",)
    rests_on = (*Silu.rests_on, "norm-mean")


class GegluBranches(GateAndUp):
    """The two branches with GELU. GELU of 2 is 1.9546, that of -1 is -0.1588, and that of -2 is
    -0.0454."""

    right = (-0.9773,)
    wrong = (
        ("gate and up exchanged", (-0.1588,)),
        ("activation of the product", (-0.0227,)),
        ("too low", (-1.8,)),
    )
    radius = 9 * HALF_BF16
    reason = "nine roundings to BF16, two of them on the way to GELU"
    catches = ("geglu-exchanged", "gate-and-up-by-order", "weight-before-norm")
    rests_on = ("gelu",)


class EachLayer(Layers):
    sees = "every layer runs once, and adds to what is there"
    rests_on = ("gelu",)
    wrong = (
        ("the first layer ran twice", (1.0, 0.5)),
        ("the last layer is missing", (0.5, 0.0)),
        ("the first layer is missing", (0.0, 0.5)),
        ("layers too large", (1.5, 1.5)),
    )
    catches = ("first-layer-twice",)


class EmbeddingScale(Measurement):
    """The scale of embeddings. Layer 0 writes an eighth of the embedding, and layer 1 sees the
    ratio of the two."""

    name = "embedding-scale"
    sees = "embeddings are multiplied by the root of the width"
    where = "token_embd, beside ffn_down of layer 0"
    right = (1.0,)
    wrong = (
        ("multiplied by the width", (0.09,)),
        ("not multiplied", (4.0,)),
        ("too small", (0.5,)),
    )
    radius = 9 * HALF_BF16
    reason = "nine roundings to BF16, two of them behind a norm"
    catches = ("embedding-scale-missing", "embedding-scale-by-width")
    rests_on = ("gelu", "post-ffw-norm")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        made = "beside the embedding"
        w.unit(0, {at.state: 8.0}, {at.state: 1.0}, {made: 1 / 8})
        w.unit(1, {at.state: 8.0}, {made: 1 / SMALL}, {at.value(): 1 / 8})


class QueryScale(ScoreScale):
    sees = "queries are divided by the root of a head's width"
    catches = ("attention-scale-of-width",)


class PostNorm(Measurement):
    """The weight of a norm after a half-layer. The measured coordinate has four times the usual
    weight, and a quarter of the usual value is written to it."""

    right = (1.0,)
    wrong = (
        ("no norm, or no weight", (0.125,)),
        ("too large", (1.6,)),
    )
    radius = 9 * HALF_BF16
    reason = "nine roundings to BF16, two of them behind a norm"


class PostAttentionNorm(PostNorm):
    name = "post-attention-norm"
    sees = "attention's output is normed, and multiplied by post_attention_norm, before it is added"
    where = "layer 1, post_attention_norm"
    catches = ("post-norm-missing",)
    rests_on = ("newest-token", "softmax-division")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        assert isinstance(w, Sandwich)
        w.post_attention_norm[1, w.coordinate(at.value())] *= 4
        w.look(1, at.state, {at.state: 1.0})
        w.read(1, {at.state: 0.25}, at.value())


class PostFfwNorm(PostNorm, FeedForward):
    name = "post-ffw-norm"
    sees = "the feed-forward network's output is normed, and multiplied by post_ffw_norm"
    where = "layer 0, post_ffw_norm"
    rests_on = ("gelu",)
    radius = 9 * HALF_BF16
    reason = PostNorm.reason

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        assert isinstance(w, Sandwich)
        w.post_ffw_norm[0, w.coordinate(at.value())] *= 4
        w.unit(0, {at.state: 8.0}, {at.state: 1.0}, {at.value(): 1 / 32})


class SlowQueryNorm(QueryNorm):
    """The norm of queries. Before the norm, the query of head 1 is eight times as long as that of
    head 0."""

    right = (share(apart(0.01, 1)),) * 2
    wrong = (
        ("queries are not normed", (right[0], 1.0)),
        ("heads are normed together", (share(apart(0.01, 1 / 5.7)), share(apart(0.01, 8 / 5.7)))),
        ("scores too large", (1.0, 1.0)),
        ("scores too small", (0.5, 0.5)),
    )
    rests_on = ("head-norm-weights", "attention-scale", "rope-pairing", "rope-base-of-windows")


class OneKeyNorm(QueryNorm):
    """The norm of keys. Before the norm, the first token's key is eight times as long as the
    others."""

    name = "key-norm"
    sees = "the key of each head is divided by its own root mean square"
    where = "layer 1, head 0, attn_k_norm"
    right = (share(apart(0.0178, 1)),)
    wrong = (
        ("keys are not normed", (1.0,)),
        ("scores too small", (0.5,)),
    )
    catches = ("key-norm-missing-gemma3", "key-norm-missing", "head-norms-missing")
    rests_on = ("head-norm-weights", "attention-scale", "rope-pairing", "rope-base-of-windows")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        assert isinstance(w, NormedHeads)
        element, value = w.shape.pair(7)[1], w.free_value(1)
        w.key(1, element, {at.before(3): 1.0, at.before(4): LESS})
        w.value(1, value, {at.before(3): 1.0})
        w.query(1, 0, element, at.state, SCORE)
        w.out(1, 0, value, at.value())
        w.stretched["k", 1, 0, at.before(3)] = STRETCH


class LocalBase(Base):
    """The base of layers with a window. Pair 4 turns by 0.1 radians with their base of 10,000, and
    by 0.178 with the base of 1000 of other layers. With the wrong base, the query finds the token 9
    positions back instead of 16."""

    name = "rope-base-of-windows"
    sees = "layers with a window rotate by the base 10000, whatever rope.freq_base says"
    where = "layer 0, head 0, pair 4"
    distances, slower, faster, score = (16,), (9,), (3,), 100.0
    wrong = (
        ("the base of the file", (0.0, 1.0, 0.0)),
        ("turns too fast", (0.0, 0.0, 1.0)),
        ("", (0.0, 0.0, 0.0)),
    )
    catches = (
        *("rope-base-of-llama3", "rope-exponent-halved", "rope-half-the-head"),
        *("window-ignored", "windows-exchanged", "weight-before-norm"),
    )
    rests_on = ("rope-pairing", "window-beyond")


class GlobalBase(Base):
    """The base of layers without a window. Pair 4 turns by 0.178 radians with the file's base of
    1000, and by 0.1 with 10,000. With the wrong base, the query finds the token 16 positions back
    instead of 9."""

    sees = "layers without a window rotate by rope.freq_base of the file, not five times as much"
    where = "layer 5, head 0, pair 4"
    layer = 5
    slower, faster, score = (16,), (3,), 100.0
    catches = (
        *("rope-base-of-llama3", "rope-exponent-halved", "rope-half-the-head"),
        *("window-everywhere", "windows-exchanged", "cache-keys-rotated-again"),
    )
    rests_on = ("rope-pairing", "far-in-global-layer")
