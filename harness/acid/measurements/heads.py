"""Tests of how query heads map to KV heads, and of caches that layers must not share."""

from lockstep.harness.acid.measurements.base import AcidPlace, Measurement
from lockstep.harness.acid.measurements.feed_forward import HALF_BF16
from lockstep.harness.acid.measurements.scores import REASON
from lockstep.harness.acid.weights import SCORE, AcidWeights

GROUPS = (
    ("heads alternate between KV heads", (0.5, -0.5, 0.5, -0.5)),
    ("KV head 0 for all", (0.5, 0.5, 0.5, 0.5)),
    ("KV head 1 for all", (-0.5, -0.5, -0.5, -0.5)),
    ("KV heads exchanged", (-0.5, -0.5, 0.5, 0.5)),
    ("head 0 lost", (0.0, 0.5, -0.5, -0.5)),
    ("head 1 lost", (0.5, 0.0, -0.5, -0.5)),
    ("head 2 lost", (0.5, 0.5, 0.0, -0.5)),
    ("head 3 lost", (0.5, 0.5, -0.5, 0.0)),
    ("heads 2 and 3 lost", (0.5, 0.5, 0.0, 0.0)),
)


class Groups(Measurement):
    right = (0.5, 0.5, -0.5, -0.5)
    wrong = GROUPS
    radius = 7 * HALF_BF16 / 2
    reason = REASON
    where = "layer 0, all four heads"
    rests_on = ("earlier-token", "newest-token", "matrix-edges", "rope-pairing")


class ValueGroups(Groups):
    """All heads find one token, whose value is 1/2 in KV head 0 and -1/2 in KV head 1."""

    name = "kv-heads-of-values"
    sees = "heads 0 and 1 read the values of KV head 0, heads 2 and 3 those of KV head 1"
    catches = (
        "kv-head-modulo",
        "value-heads-by-modulo",
        "last-head-dropped",
        "last-kv-head-dropped",
        "heads-interleaved",
    )

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        target = at.before(3)
        key, element = w.free_key(0), w.free_value(0)
        for kv, value in enumerate((1.0, -1.0)):
            w.key_of(0, kv, key, {target: 1.0})
            w.value_of(0, kv, element, {target: value})
        for head in range(w.shape.n_head):
            w.query(0, head, key, at.state, SCORE)
            w.out(0, head, element, at.value(head), 0.5)


class KeyGroups(Groups):
    """KV head 0 finds one token, and KV head 1 finds another token with the opposite value."""

    name = "kv-heads-of-keys"
    sees = "heads 0 and 1 score the keys of KV head 0, heads 2 and 3 those of KV head 1"
    where = "layer 1, all four heads"
    catches = (
        "kv-head-modulo",
        "first-kv-head-for-all",
        "last-head-dropped",
        "last-kv-head-dropped",
        "heads-interleaved",
    )

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        first, second = at.before(3), at.before(4)
        key, element = w.free_key(1), w.free_value(1)
        for kv, target in enumerate((first, second)):
            w.key_of(1, kv, key, {target: 1.0})
            w.value_of(1, kv, element, {first: 1.0, second: -1.0})
        for head in range(w.shape.n_head):
            w.query(1, head, key, at.state, SCORE)
            w.out(1, head, element, at.value(head), 0.5)


class LayersCaches(Measurement):
    """A query that finds a different token in each layer, with a different value."""

    name = "cache-of-layers"
    sees = "each layer has keys and values of its own"
    where = "layers 0 and 1, head 0"
    right = (0.5, 0.5)
    wrong = (
        ("layer 1 reads the cache of layer 0", (0.5, -0.5)),
        ("layer 0 reads the cache of layer 1", (-0.5, 0.5)),
        ("caches exchanged", (-0.5, -0.5)),
        ("", (0.0, 0.0)),
    )
    radius = 7 * HALF_BF16 / 2
    reason = REASON
    catches = ("cache-shared-by-layers",)
    rests_on = ("earlier-token", "newest-token", "rope-pairing", "rope-base")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        key, element = w.free_key(0, 1), w.free_value(0, 1)
        for layer, (here, there) in enumerate(((3, 4), (4, 3))):
            # so that the cache of the other layer always holds the other value
            sign = (1.0, -1.0)[layer]
            w.key(layer, key, {at.before(here): 1.0})
            w.value(layer, element, {at.before(here): sign, at.before(there): -sign})
            w.query(layer, 0, key, at.state, SCORE)
            w.out(layer, 0, element, at.value(layer), sign / 2)
