"""Tests that need the acid prompt: what was read in one batch, far back."""

from harness.acid.measurements.base import Measurement, Place
from harness.acid.measurements.feed_forward import HALF_BF16
from harness.acid.measurements.scores import REASON
from harness.acid.tokens import role
from harness.acid.weights import FAR, FAR_TOO, SCORE, SMALL, Weights

FOUND = "found"  # a coordinate of what the letters found in layer 0


class Prompted(Measurement):
    needs_prompt = True
    radius = 7 * HALF_BF16
    reason = REASON


class Far(Prompted):
    """A letter of the prompt that stands nowhere else."""

    letter: str
    where = "layer 1, head 0"
    right = (1.0,)
    wrong = {"": (0.0,), "too large": (2.0,)}

    def build(self, w: Weights, at: Place) -> None:
        find(w, 0, at.state, self.letter)
        w.read(1, {role(self.letter): 1.0}, at.value())


def find(w: Weights, head: int, state: str, letter: str) -> None:
    """In this state the head of layer 1 finds the letter."""
    element = {"m": FAR, "n": FAR_TOO}[letter]
    w.key(1, element, {role(letter): 1.0})
    w.query(1, head, element, state, 1.5 * SCORE)


class Far64(Far):
    name = "far-64"
    sees = "a token more than 64 positions back, in a prompt of more than 256"
    letter = "n"
    catches = ("cache-ring-of-32",)


class Far256(Far):
    name = "far-256"
    sees = "a token more than 256 positions back, the first letter of the prompt"
    letter = "m"
    catches = ("cache-ring-of-32",)


class CausalMask(Prompted):
    """In layer 0 the letters m and n look for k, which stands between them: m must not see it. What
    they found is read from both in layer 1, by the heads that find them for the tests above."""

    name = "causal-mask"
    sees = "a token of the prompt sees none behind it, and sees those before it"
    where = "layer 0, head 0; layer 1, heads 0 and 1"
    right = (0.0, 0.9961)  # beside 1 and 1: sqrt(2 / (2 + SMALL**2))
    wrong = {
        "later tokens are seen": (1.0, 1.0),
        "": (0.0, 0.0),
        "seen the wrong way round": (1.0, 0.0),
    }
    catches = ("mask-missing", "mask-sees-the-next", "mask-of-minus-ten", "mask-hidden-as-zero")

    def build(self, w: Weights, at: Place) -> None:
        w.key(0, FAR, {role("k"): 1.0})
        w.read(0, {role("k"): 1.0}, FOUND)
        element = w.free_value(1)
        w.value(1, element, {FOUND: 1 / SMALL})
        for head, letter in enumerate("mn"):
            w.query(0, 0, FAR, role(letter), SCORE)
            find(w, head, at.state, letter)
            w.out(1, head, element, at.value(head))


class EachTokensNorm(Prompted):
    """The letter g is four times as long as the others; behind a norm it is as they are."""

    name = "norm-of-each-token"
    sees = "each token of a prompt is divided by its own root mean square"
    where = "layer 0, attn_norm, read by head 0"
    right = (1.0,)
    wrong = {
        "another token's norm": (4.0,),
        "too small": (0.5,),
        "too large": (1.5,),
    }
    catches = ("norm-of-first-row", "stale-norm")

    def build(self, w: Weights, at: Place) -> None:
        w.look(0, at.state, {role("g"): 1.0})
        w.read(0, {role("g"): 1.0}, at.value())
