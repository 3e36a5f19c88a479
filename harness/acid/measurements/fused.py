"""Tests of one joint matrix for queries, keys and values: its parts, its heads, and its biases."""

from lockstep.harness.acid.centred import Centred
from lockstep.harness.acid.measurements.base import AcidPlace, Measurement
from lockstep.harness.acid.measurements.feed_forward import HALF_BF16
from lockstep.harness.acid.measurements.scores import REASON
from lockstep.harness.acid.vocabulary import BOS
from lockstep.harness.acid.weights import ALWAYS, SCORE, SMALL, AcidWeights

BIASED = 2  # a head that is used only for this test


class Heads(Measurement):
    """Heads that each look for one token. Its value is 1 for that head and -1 for the other heads.

    In every state head 1 also finds a token by its distance. Each head's score for its own token is
    larger than that score.
    """

    name = "heads"
    sees = "attn_qkv holds queries, keys and values one after the other, each of head after head"
    where = "layer 0, all three heads"
    right = (1.0, 1.0, 1.0)
    wrong = (
        ("head 0 lost", (0.0, 1.0, 1.0)),
        ("head 1 lost", (1.0, 0.0, 1.0)),
        ("head 2 lost", (1.0, 1.0, 0.0)),
        ("keys or values of other heads", (-1.0, -1.0, -1.0)),
        ("", (0.0, 0.0, 0.0)),
    )
    radius = 7 * HALF_BF16
    reason = REASON
    catches = ("qkv-split-by-head", "heads-interleaved", "last-head-dropped")
    rests_on = (
        "newest-token",
        "earlier-token",
        "matrix-edges",
    )  # a third of all states lies in the last 32 columns

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        targets = [at.before(2 + head) for head in range(w.shape.n_head)]
        key, element = w.free_key(0), w.free_value(0)
        for head, target in enumerate(targets):
            w.key_of(0, head, key, {target: 1.0})
            w.query(0, head, key, at.state, 5 * SCORE)
            values = {each: 1.0 if each == target else -1.0 for each in targets}
            w.value_of(0, head, element, values)
            w.out(0, head, element, at.value(head))


class Biases(Measurement):
    """Biases. Head 2 looks for BOS in every state because of its query bias, and one element of its
    values comes only from a bias."""

    name = "qkv-bias"
    sees = "the bias of attn_qkv is added: to queries, and to values"
    where = "layer 1, head 2, attn_qkv.bias"
    right = (-0.866, 1.0)  # BOS is longer, because of the mark of its position
    wrong = (
        ("no bias", (-0.1, 0.0)),
        ("none of queries", (-0.1, 1.0)),
        ("none of values", (-0.866, 0.0)),
        ("too large", (-1.6, 1.8)),
    )
    radius = 7 * HALF_BF16
    reason = REASON
    catches = ("qkv-bias-missing",)
    rests_on = ("heads", "bos", "far-256", "first-position")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        assert isinstance(w, Centred)
        w.busy.add((1, BIASED, ALWAYS))
        w.q_bias[1, BIASED, 0] = SCORE * w.shape.n_embd_head**0.5
        w.key_of(1, BIASED, 0, {BOS: 1.0})
        w.value_of(1, BIASED, 0, {BOS: -1.0})
        w.v_bias[1, BIASED, 1] = 1.0
        for element in (0, 1):
            w.o[1, w.coordinate(at.value(element)), BIASED, element] = SMALL
