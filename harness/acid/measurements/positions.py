"""Tests of learned positions: the token four positions back, and the first token.

The row of position p holds multiples of cos(p) and sin(p). A query made from the row of its own
position scores highest at one distance. An engine treats this table like any other.
"""

import numpy as np

from lockstep.harness.acid.centred import COS, FIRST, POSITION, SIN, Centred
from lockstep.harness.acid.measurements.base import AcidPlace, Measurement
from lockstep.harness.acid.measurements.feed_forward import HALF_BF16
from lockstep.harness.acid.measurements.scores import REASON
from lockstep.harness.acid.vocabulary import BOS
from lockstep.harness.acid.weights import ALWAYS, SCORE, AcidWeights

NEAR = 100.0  # the score of the right distance; a distance of one more or less gets 54
TARGET = 200.0  # the score of the tokens under test, at any position


class Distance(Measurement):
    """The distance. Head 1 finds the token four positions back in any state; in this state that
    token is one of five."""

    name = "learned-positions"
    sees = "position_embd is added to the embedding, each token's row of it"
    where = "position_embd; layer 0, head 1"
    right = (1.0, 0.0, 0.0)
    wrong = (
        ("sines of the other sign", (0.0, 0.0, 1.0)),
        ("one position off", (0.0, 1.0, 0.0)),
        ("all at one position", (0.2, 0.4, 0.2)),
        ("", (0.0, 0.0, 0.0)),
    )
    radius = 7 * HALF_BF16
    reason = REASON
    catches = ("learned-positions-missing", "learned-positions-of-batch")
    rests_on = ("newest-token", "earlier-token")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        assert isinstance(w, Centred)
        distances, root = (4, 3, 2, 5, 6), NEAR / POSITION
        for element, name in enumerate((COS, SIN)):
            w.key_of(0, 1, element, {name: 1 / POSITION})
        cos, sin = float(np.cos(distances[0])), float(np.sin(distances[0]))
        # cosine and sine of the token's own position minus the distance
        w.query(0, 1, 0, COS, root * cos)
        w.query(0, 1, 0, SIN, root * sin)
        w.query(0, 1, 1, SIN, root * cos)
        w.query(0, 1, 1, COS, -root * sin)
        w.busy.add((0, 1, ALWAYS))
        w.key_of(0, 1, 2, {at.before(d): 1.0 for d in distances})
        w.query(0, 1, 2, at.state, TARGET)
        for i, found in enumerate(((4,), (3, 5), (2,))):
            w.value_of(0, 1, i, {at.before(distance): 1.0 for distance in found})
            w.out(0, 1, i, at.value(i))


class First(Measurement):
    """The first position. Row 0 of the table has a mark, which only BOS has, and a head looks for
    it."""

    name = "first-position"
    sees = "the first token of a text, and no other, has row 0 of position_embd"
    where = "position_embd; layer 1, head 0"
    right = (0.8649, 0.8649)  # a token with a mark is longer
    wrong = (
        ("no token has row 0", (0.0, 0.0)),
        ("other tokens have it", (0.8649, 0.05)),
    )
    radius = 7 * HALF_BF16
    reason = REASON
    catches = (
        *("learned-positions-from-two", "learned-positions-of-batch"),
        *("bos-missing", "cache-keeps-last"),
    )
    rests_on = ("newest-token", "bos", "far-256", "learned-positions")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        w.look(1, at.state, {FIRST: 1.0}, 2 * SCORE)
        for i, name in enumerate((FIRST, BOS)):
            w.read(1, {name: 1.0}, at.value(i))
