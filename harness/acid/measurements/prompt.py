"""Tests that need the acid prompt, because they read tokens far back in the batch."""

from lockstep.harness.acid.measurements.base import AcidPlace, Measurement, Names
from lockstep.harness.acid.measurements.feed_forward import HALF_BF16
from lockstep.harness.acid.measurements.scores import REASON
from lockstep.harness.acid.tokens import role
from lockstep.harness.acid.weights import (
    CONST,
    FAR,
    FAR_TOO,
    NOT_ITS_OWN,
    SCORE,
    SMALL,
    AcidWeights,
)

FOUND = "found"  # a coordinate for what the letters found in layer 0


class Prompted(Measurement):
    needs_prompt = True
    radius = 7 * HALF_BF16
    reason = REASON


# keys of these tests are in elements that rotate slowly
FAR_RESTS_ON = ("layers", "prompt-end", "newest-token", "earlier-token", "rope-base")


class Far(Prompted):
    """A letter that occurs once in the prompt."""

    letter: str
    layer = 1
    where = "layer 1, head 0"
    right = (1.0,)
    wrong = (
        ("", (0.0,)),
        ("too large", (2.0,)),
    )

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        find(w, (self.layer, 0), at.state, self.letter)
        w.read(self.layer, {role(self.letter): 1.0}, at.value())


def find(w: AcidWeights, place: tuple[int, int], state: str, letter: str) -> None:
    """Write a head that finds the letter in this state. place: the layer and the head."""
    (layer, head), element = place, {"m": FAR, "n": FAR_TOO}[letter]
    w.key(layer, element, {role(letter): 1.0})
    w.query(layer, head, element, state, 1.5 * SCORE)


class Far64(Far):
    name = "far-64"
    rests_on = FAR_RESTS_ON
    sees = "attention reaches a token more than 64 positions back, in a prompt of more than 256"
    letter = "n"
    catches = ("cache-ring-of-32", "cache-keeps-last")


class Far256(Far):
    name = "far-256"
    rests_on: Names = FAR_RESTS_ON
    sees = "attention reaches the first letter of the prompt, more than 256 positions back"
    letter = "m"
    catches: Names = ("cache-ring-of-32", "cache-keeps-last")


class CausalMask(Prompted):
    """The causal mask. In layer 0 the letter m looks for k, which comes 200 times later and is
    hidden, and finds itself with the value -1. The letter n, which comes after them, finds k with
    the value 1. All scores of m are below -18, so hidden scores of zero would win."""

    name = "causal-mask"
    sees = "a prompt's token neither sees nor counts later tokens, and sees those before it"
    layer = 1  # reads what layer 0 wrote for the letters
    where = "layer 0, head 0; layer 1, heads 0 and 1"
    right = (-1.0, 1.0)
    wrong = (
        ("later tokens are seen", (0.8, 1.0)),
        ("later tokens count in the sum", (0.0, 1.0)),
        ("earlier tokens are not seen", (-1.0, 0.0)),
        ("", (0.0, 0.0)),
    )
    radius = 7 * HALF_BF16
    catches = (
        "mask-missing",
        "mask-sees-the-next",
        "mask-of-minus-ten",
        "mask-hidden-as-zero",
        "mask-after-softmax",
    )
    rests_on: Names = ("far-64", "far-256", "newest-token", "softmax-sum", "rope-base")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        w.key(0, FAR, {CONST: -1.0, role("m"): 0.6875, role("k"): 2.0})
        w.read(0, {role("m"): -1.0, role("k"): 1.0}, FOUND)
        element = w.free_value(self.layer)
        w.value(self.layer, element, {FOUND: 1 / SMALL})
        for head, letter in enumerate("mn"):
            w.query(0, 0, FAR, role(letter), SCORE)
            find(w, (self.layer, head), at.state, letter)
            w.out(self.layer, head, element, at.value(head))


class PromptEnd(Prompted):
    """A letter that occurs once, in the last cells before the report."""

    name = "prompt-end"
    sees = "attention reaches the end of a long prompt, in cells beyond 256"
    where = "layer 0, head 0"
    right = (1.0,)
    wrong = (
        ("", (0.0,)),
        ("too large", (2.0,)),
    )
    catches = (
        "cache-cells-beyond-64",
        "cache-cells-beyond-256",
        "attention-last-cells-dropped",
    )
    rests_on = ("layers", "far-64", "far-256", "newest-token", "earlier-token", "rope-pairing")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        w.key(0, FAR_TOO, {role("s"): 1.0})
        w.query(0, 0, FAR_TOO, at.state, SCORE)
        w.read(0, {role("s"): 1.0}, at.value())


class PromptPositions(Prompted):
    """A test with four neighbouring letters. A query that pair 0 rotates finds the third letter."""

    name = "positions-in-prompt"
    sees = "each token of a prompt has a position of its own, and the report goes on from them"
    where = "layer 0, head 0, pair 0"
    right = (1.0, 0.0)
    wrong = (
        ("", (0.0, 0.0)),
        ("one position off", (0.0, 1.0)),
    )
    reason = "a weight of attention within exp(-10) of one, and seven roundings to BF16"
    catches = ("rope-one-position-for-the-batch", "rope-restarts-with-batch")
    rests_on = ("prompt-end", "earlier-token", "rope-pairing")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        keys = {role(letter): 1.0 for letter in "pqrs"}
        w.look(0, at.state, keys)
        w.turn((0, 0, 0), at.state, keys, at.behind("r"), 100.0)
        w.read(0, {role("r"): 1.0}, at.value(0))
        w.read(0, {role("q"): 1.0, role("s"): 1.0}, at.value(1))


class EachTokensNorm(Prompted):
    """The norm of each token. The letter g is four times as long as the other letters. After a
    norm, all have the same length."""

    name = "norm-of-each-token"
    sees = "each token of a prompt is divided by its own root mean square"
    where = "layer 0, attn_norm, read by head 0"
    right = (1.0,)
    wrong = (
        ("another token's norm", (4.0,)),
        ("too small", (0.5,)),
        ("too large", (1.5,)),
    )
    catches = ("norm-of-first-row", "stale-norm")
    rests_on = ("prompt-end", "earlier-token", "rope-base")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        w.key(0, NOT_ITS_OWN, {role("g"): 1.0})
        w.query(0, 0, NOT_ITS_OWN, at.state, SCORE)
        w.read(0, {role("g"): 1.0}, at.value())
