"""Tests of the norms on each head's queries and keys."""

import numpy as np

from lockstep.harness.acid.measurements.base import AcidPlace, Measurement, Names, Values, Wrong
from lockstep.harness.acid.measurements.feed_forward import HALF_BF16
from lockstep.harness.acid.normed_heads import NormedHeads
from lockstep.harness.acid.weights import AcidWeights

STRETCH = 8.0  # factor by which a norm shortens a vector
SCORE, LESS = 40.0, 31 / 32


def share(score: float) -> float:
    """Return the attention weight of the first of two tokens whose scores differ by `score`."""
    return round(float(1 / (1 + np.exp(-score))), 4)


def apart(frequency: float, times: float) -> float:
    """Return the score of a token three steps back minus that of another token four steps back."""
    return SCORE * float(np.cos(3 * frequency) - LESS * np.cos(4 * frequency)) * times


class HeadNorm(Measurement):
    """The norm of a head. Two tokens share the attention, because their scores are close.

    Without the norm, the token with the longer vector gets all of the attention.
    """

    radius = 9 * HALF_BF16
    reason = "scores within 2^-8 of 1.4, and seven roundings to BF16"
    rests_on: Names = (
        *("head-norm-weights", "attention-scale", "rope-pairing", "rope-base"),
        "kv-heads-of-keys",
    )

    def look_for_two(
        self, w: AcidWeights, at: AcidPlace, layer: int, pair: int, heads: int
    ) -> None:
        assert isinstance(w, NormedHeads), "an architecture whose heads are normed"
        element, value = w.shape.pair(pair)[1], w.free_value(layer)
        w.key(layer, element, {at.before(3): 1.0, at.before(4): LESS})
        w.value(layer, value, {at.before(3): 1.0})
        for i, head in enumerate((0, heads)):
            w.query(layer, head, element, at.state, SCORE)
            w.out(layer, head, value, at.value(i))


class QueryNorm(HeadNorm):
    """The norm of queries. Before the norm, the query of head 1 is eight times as long as that of
    head 0."""

    name = "query-norm"
    sees = "the query of each head is divided by its own root mean square"
    where = "layer 0, heads 0 and 1, attn_q_norm"
    right: Values = (share(apart(0.03162, 1)),) * 2
    wrong: Wrong = (
        ("queries are not normed", (right[0], 1.0)),
        ("heads are normed together", (share(apart(0.03162, 1 / 4)), share(apart(0.03162, 2)))),
        ("scores too large", (1.0, 1.0)),
        ("scores too small", (0.5, 0.5)),
    )
    catches: Names = ("query-norm-missing", "head-norms-missing", "heads-normed-together")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        self.look_for_two(w, at, 0, 8, 1)
        assert isinstance(w, NormedHeads)
        w.stretched["q", 0, 1, at.state] = STRETCH


class KeyNorm(HeadNorm):
    """The norm of keys. Before the norm, the first token's key in KV head 1 is eight times as long
    as other keys."""

    name = "key-norm"
    sees = "the key of each head is divided by its own root mean square"
    where = "layer 1, heads 0 and 2, attn_k_norm"
    right = (share(apart(0.0487, 1)),) * 2
    wrong = (
        ("keys are not normed", (right[0], 1.0)),
        ("heads are normed together", (0.0, 1.0)),
        ("scores too large", (1.0, 1.0)),
        ("scores too small", (0.5, 0.5)),
    )
    catches = ("key-norm-missing", "head-norms-missing", "heads-normed-together")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        self.look_for_two(w, at, 1, 7, 2)
        assert isinstance(w, NormedHeads)
        w.stretched["k", 1, 1, at.before(3)] = STRETCH


class HeadNormWeights(Measurement):
    """The weights of the head norms. A query in the second element of pair 0 and a key in the first
    element meet by rotation, two steps apart. The weights there are 4 and 4, and 1/4 in the other
    two elements. So the score is 320, or 20 if the weights are applied after the rotation, or 1.25
    if they are exchanged. Another token has a score of 100 for head 0, and 8 for head 1."""

    name = "head-norm-weights"
    sees = "normed queries and keys are multiplied by attn_q_norm and attn_k_norm, then rotated"
    where = "layer 1, heads 0 and 1, pair 0"
    right = (1.0, 1.0)
    wrong = (
        ("turned before they are multiplied, or no weights", (0.0, 1.0)),
        ("weights of queries and keys exchanged", (0.0, 0.0)),
        ("too small", (0.5, 0.5)),
        ("too large", (2.0, 2.0)),
    )
    radius = 7 * HALF_BF16
    reason = "a weight of attention within exp(-10) of one, and seven roundings to BF16"
    catches = (
        "head-norms-exchanged",
        "head-norm-after-rope",
        "norm-without-weight",
        "weight-before-norm",
    )
    rests_on = ("newest-token", "query-norm", "key-norm", "rope-pairing", "rope-base")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        assert isinstance(w, NormedHeads)
        target, other = at.before(2), at.before(3)
        (first, second), element, value = w.shape.pair(0), w.free_key(1), w.free_value(1)
        w.q_norm[1, second] *= 4
        w.k_norm[1, first] *= 4
        w.q_norm[1, first] /= 4
        w.k_norm[1, second] /= 4
        w.key(1, first, {target: 1.0})
        w.key(1, element, {other: 1.0})
        w.value(1, value, {target: 1.0})
        # the norm's own weights multiply it by sixteen
        meets = 20.0 / float(np.sin(2 * w.frequency(1, 0)))
        for head, score in enumerate((100.0, 8.0)):
            w.query(1, head, second, at.state, -meets)
            w.query(1, head, element, at.state, score)
            w.out(1, head, value, at.value(head))
