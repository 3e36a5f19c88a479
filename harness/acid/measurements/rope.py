"""Tests of rotary positions. A query is rotated so that one distance fits, and wrong rotations fit
other distances.

A query can find only a few tokens of the report, so the token that it finds shows the mistake.
"""

from lockstep.harness.acid.measurements.base import AcidPlace, Measurement, Names, Wrong
from lockstep.harness.acid.measurements.feed_forward import HALF_BF16
from lockstep.harness.acid.weights import AcidWeights


class Rope(Measurement):
    """A rotary test. `layer`, `turns` and `score`: the layer, the pair and the score of head 0's
    rotated query; `distances`: the tokens that it may find, the right one first, each with its own
    value; `others`: tokens without a value."""

    layer: int
    turns: int
    score: float
    distances: tuple[int, ...]
    others: tuple[int, ...] = ()
    radius = 7 * HALF_BF16
    reason = "a weight of attention within exp(-10) of one, and seven roundings to BF16"
    rests_on: tuple[str, ...] = ("earlier-token", "newest-token")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        every = {at.before(d): 1.0 for d in (*self.distances, *self.others)}
        w.look(self.layer, at.state, every)
        place = (self.layer, 0, self.turns)
        w.turn(place, at.state, every, self.distances[0], self.score)
        for i, distance in enumerate(self.distances):
            w.read(self.layer, {at.before(distance): 1.0}, at.value(i))


class Pairing(Rope):
    """The pairing of elements. Pair 0 turns by one radian per position, with any base. With the
    other pairing, the second part of the query never meets the key, and the score follows cos(4) *
    cos(d), which is best at 3. With the opposite rotation, it follows cos(d + 4), which is best at
    2. If keys are one position late, the query finds a token one position further back."""

    name = "rope-pairing"
    sees = "the right elements of a head rotate together, the right way, from the right position"
    where = "layer 0, head 0, pair 0"
    layer, turns, score = 0, 0, 100.0
    distances, others = (4, 3, 2, 5), (6,)
    right = (1.0, 0.0, 0.0, 0.0)
    wrong = (
        ("pairs of the other kind", (0.0, 1.0, 0.0, 0.0)),
        ("turned the other way", (0.0, 0.0, 1.0, 0.0)),
        ("keys one position late", (0.0, 0.0, 0.0, 1.0)),
        ("", (0.0, 0.0, 0.0, 0.0)),
    )
    catches = (
        "rope-half-split",
        "rope-other-way",
        "rope-keys-not-rotated",
        "rope-keys-one-late",
        "rope-exponent-from-one",
        "rope-last-half-of-the-head",
        "rope-queries-twice",
        "rope-restarts-with-batch",
        "rope-rows-not-permuted",
        "rope-half-the-head",  # if elements half a head apart rotate together
        "cache-keys-rotated-again",
    )


class Base(Rope):
    """The base. If an engine uses a wrong base, the query finds a token at a wrong distance.

    With the file's base of 1000, pair 4 rotates by 0.178 radians per position. The query is rotated
    by 1.6 radians, so it finds the token 9 positions back. With another base, 1.6 radians are
    another distance: 7.6 positions with base 500, 10.7 with 2000, 13.5 with 5000, 16 with 10,000.
    For each of these bases, a token in `slower` or `faster` is nearer to that distance than 9.
    """

    name = "rope-base"
    sees = (
        "rotation uses rope.freq_base of the file, not half or double of it or beyond; "
        "frequencies fall from pair to pair"
    )
    where = "layer 0, head 0, pair 4"
    layer, turns, score = 0, 4, 400.0
    distances = (9,)
    # the token 16 positions back belongs to matrix-edges, whose keys are shorter
    slower: tuple[int, ...] = (11, 13, 17)
    faster: tuple[int, ...] = (7, 3)
    right = (1.0, 0.0, 0.0)
    wrong: Wrong = (
        ("turns too slowly: 10000 taken for 1000?", (0.0, 1.0, 0.0)),
        ("turns too fast", (0.0, 0.0, 1.0)),
        ("", (0.0, 0.0, 0.0)),
    )
    catches: Names = (
        "rope-base-of-llama3",
        "rope-exponent-halved",
        "rope-exponent-from-one",
        "rope-half-the-head",
        "cache-keys-rotated-again",
    )
    rests_on: Names = ("rope-pairing", "matrix-edges", "cache-of-layers")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        groups = (self.distances, self.slower, self.faster)
        every = {at.before(d): 1.0 for group in groups for d in group}
        w.look(self.layer, at.state, every)
        place = (self.layer, 0, self.turns)
        w.turn(place, at.state, every, self.distances[0], self.score)
        for i, group in enumerate(groups):
            w.read(self.layer, {at.before(d): 1.0 for d in group}, at.value(i))


class SlowPairs(Rope):
    """The rotation of pair 8 of 16, by 0.03 radians per position. Without it, four tokens have the
    same score."""

    name = "rope-slow-pairs"
    sees = "the second half of a head's pairs rotates as well"
    where = "layer 1, head 0, pair 8"
    layer, turns, score = 1, 8, 400.0
    distances, others = (14,), (2, 3, 4)
    right = (1.0,)
    wrong = (
        ("", (0.25,)),
        ("too large", (1.75,)),
    )
    catches = ("rope-half-the-head", "rope-last-half-of-the-head")
    rests_on = ("rope-pairing", "rope-base")


class ValuesStay(Measurement):
    """Values must not rotate. The value is in elements that would rotate fastest, for either
    pairing."""

    name = "values-not-turned"
    sees = "values are not rotated"
    where = "layer 0, head 0"
    right = (1.0, 1.0, 1.0)
    wrong = (
        ("", (0.0, 0.0, 0.0)),
        ("pair 0", (0.0, 1.0, 1.0)),
        ("pair 1", (1.0, 0.0, 1.0)),
        ("pair 2", (1.0, 1.0, 0.0)),
    )
    radius = 7 * HALF_BF16
    reason = Rope.reason
    catches = ("rope-of-values",)
    rests_on = ("earlier-token", "newest-token", "attn-norm-weight")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        target = at.before(2)
        w.look(0, at.state, {target: 1.0})
        for i, element in enumerate((0, 2, 4)):
            w.value(0, element, {target: 1.0})
            w.out(0, 0, element, at.value(i))
