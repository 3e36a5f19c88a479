"""Tests of attention scores: their scale, the softmax, and which tokens are visible."""

from lockstep.harness.acid.measurements.base import AcidPlace, Measurement, Names
from lockstep.harness.acid.measurements.feed_forward import HALF_BF16
from lockstep.harness.acid.weights import CONST, NOT_ITS_OWN, TINY, AcidWeights

REASON = "a weight of attention within exp(-50) of one, and seven roundings to BF16"


class NewestToken(Measurement):
    """A head that finds its own token."""

    name = "newest-token"
    sees = "a token attends to itself, so attention reads the newest cells of the cache"
    where = "layer 1, head 0"
    right = (1.0,)
    wrong = (
        ("", (0.0,)),
        ("too large", (2.0,)),
    )
    radius = 7 * HALF_BF16
    reason = REASON
    catches = (
        "mask-not-itself",
        "attention-last-cells-dropped",
        "race-cache-written-late",
        "cache-one-slot-late",
        "cache-read-before-written",
        "cache-keys-for-values",
        "cache-values-transposed",
    )

    rests_on = (
        *("layers", "matrix-edges", "prompt-end", "rope-pairing", "rope-base"),
        *("head-norm-weights", "heads", "post-attention-norm"),
    )

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        w.look(1, at.state, {at.state: 1.0})
        w.read(1, {at.state: 1.0}, at.value())


class EarlierToken(Measurement):
    """A query that finds the token written five steps earlier."""

    name = "earlier-token"
    sees = "a token attends to one that was written some steps earlier"
    where = "layer 0, head 0"
    right = (1.0,)
    wrong = (
        ("", (0.0,)),
        ("too large", (2.0,)),
    )
    radius = 7 * HALF_BF16
    reason = REASON
    catches = (
        "cache-batch-sees-itself-alone",
        "mask-from-the-left",
        "heads-interleaved",
        "cache-keys-for-values",
        "cache-values-transposed",
    )

    rests_on = (
        *("newest-token", "heads", "matrix-edges", "prompt-end", "positions-in-prompt"),
        *("values-not-turned", "cache-of-layers", "rope-pairing", "rope-base"),
    )

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        target = at.before(5)
        w.look(0, at.state, {target: 1.0})
        w.read(0, {target: 1.0}, at.value())


class ScoreScale(Measurement):
    """The scale of scores. Two tokens whose scores differ by 1.25 share the attention as 0.777 to
    0.223."""

    name = "attention-scale"
    sees = "scores are divided by the root of a head's width"
    where = "layer 1, head 0"
    right = (0.7773,)
    wrong = (
        ("scores too large", (0.95,)),
        ("scores too small", (0.6,)),
    )
    radius = 9 * HALF_BF16
    reason = "scores within 2^-8 of 1.25, and seven roundings to BF16"
    catches: Names = (
        "attention-scale-squared",
        "attention-scale-of-width",
        "missing-scale",
        "softmax-not-divided",
    )
    rests_on = (
        *("earlier-token", "newest-token", "causal-mask", "norm-mean", "rope-base"),
        "learned-positions",
    )

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        first, second = at.before(3), at.before(4)
        w.look(1, at.state, {first: 1.0, second: 31 / 32}, score=40.0, alone=True)
        w.read(1, {first: 1.0}, at.value())


class Softmax(Measurement):
    """The softmax. All scores are below -20, so an extra term with a score of zero would dominate
    the sum."""

    name = "softmax-sum"
    sees = "a softmax is over the visible scores only, and sums to one"
    where = "layer 1, head 0"
    right = (1.0,)
    wrong = (
        ("scores of zero count as well", (0.0,)),
        ("the sum is less than it should be", (2.0,)),
    )
    radius = 7 * HALF_BF16
    reason = REASON
    catches = (
        "softmax-plus-one",
        "mask-padding-counted",
        "mask-hidden-as-zero",
        "batch-odd-row-lost",
        "cache-keeps-last",  # forgotten tokens have scores of zero
        "race-cache-written-late",
    )
    rests_on = ("earlier-token", "newest-token", "norm-mean", "far-256", "rope-base")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        target = at.before(3)
        w.key(1, NOT_ITS_OWN, {CONST: -1.0, TINY: -1.5, target: 0.75})
        w.query(1, 0, NOT_ITS_OWN, at.state, 100.0)
        w.read(1, {target: 1.0}, at.value())


class SoftmaxDivided(Measurement):
    """The softmax of two tokens with the same score: each gets a half."""

    name = "softmax-division"
    sees = "a softmax is divided by its sum: two equal scores are a half each"
    where = "layer 1, head 0"
    right = (0.5,)
    wrong = (
        ("not divided", (1.0,)),
        ("less than a half", (0.25,)),
    )
    radius = 7 * HALF_BF16
    reason = REASON
    catches = ("softmax-not-divided",)
    rests_on = ("earlier-token", "newest-token", "norm-mean", "rope-base")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        first, second = at.before(4), at.before(5)
        w.look(1, at.state, {first: 1.0, second: 1.0}, alone=True)
        w.read(1, {first: 1.0}, at.value())
