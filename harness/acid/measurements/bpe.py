"""Tests of a BPE tokenizer. Attention finds the ids of the acid prompt by their embeddings."""

from typing import ClassVar

from lockstep.harness.acid.measurements.base import AcidPlace, Measurement
from lockstep.harness.acid.measurements.feed_forward import HALF_BF16
from lockstep.harness.acid.measurements.scores import REASON
from lockstep.harness.acid.tokens import role
from lockstep.harness.acid.vocabulary import BOS
from lockstep.harness.acid.weights import AcidWeights

BOTH, ABOVE = 7, 25.0  # the pair that finds the prompt's beginning, and the score by which it leads
FOUND = 90.0  # a score that suffices even at the end of a long report


class BpeCut(Measurement):
    """A test of how a prompt is cut into tokens. `shown`: values of the possible tokens, the right
    one first."""

    needs_prompt = of_tokenizer = True
    where = "the tokenizer; layer 0, head 0"
    shown: ClassVar[dict[str, tuple[float, ...]]]
    side: ClassVar[tuple[str, float]]  # an element of keys, and the sign to look for
    radius = 7 * HALF_BF16
    reason = REASON
    rests_on: tuple[str, ...] = (
        *("prompt-end", "positions-in-prompt", "far-64", "earlier-token"),
        *("values-not-turned", "rope-base"),
    )

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        name, sign = self.side
        element = w.shared_key(0, name)
        w.key(0, element, {role(name): sign for name in self.shown})
        w.query(0, 0, element, at.state, sign * FOUND)
        for i in range(len(self.right)):
            parts = {role(name): values[i] for name, values in self.shown.items() if values[i]}
            w.read(0, parts, at.value(i))


class BpeMerges(BpeCut):
    """A test with "abc": b and c merge, and a stays. The merge of a and b has a later rank."""

    name = "bpe-merges"
    sees = "tokens are merged, the pair with the best rank first"
    side = ("words", 1.0)
    shown: ClassVar = {"best-merge": (1.0, 0.0), "left-merge": (0.0, 1.0)}
    right = (1.0, 0.0)
    wrong = (
        ("from left to right, or by length", (0.0, 1.0)),
        ("nothing is merged", (0.0, 0.0)),
        ("too low", (-1.0, 0.0)),
    )
    catches = ("merges-from-left", "merges-unread")


class BpeBytes(BpeCut):
    """The spelling of an e with an accent as two bytes, because no token is that character."""

    name = "bpe-bytes"
    sees = "a character without a token is spelled in the bytes of its UTF-8"
    side = ("words", -1.0)
    shown: ClassVar = {"byte-of-utf-8": (1.0,), "byte-of-latin-1": (-1.0,)}
    right = (1.0,)
    wrong = (
        ("characters for bytes", (-1.0,)),
        ("no byte of it", (0.0,)),
        ("too large", (2.0,)),
    )


class Digits(BpeCut):
    """Digits. Merges would make one token of a space, 1 and 2, but the pre-tokenizer may split
    them."""

    name = "bpe-pre-tokenizer"
    sees = "tokenizer.ggml.pre: each digit is a word, so that no merge of two is made"
    side = ("signs", 1.0)
    shown: ClassVar = {
        "digits-apart": (1.0, 0.0),
        "digits-together": (0.0, 1.0),
        "space-and-digits": (-1.0, 0.0),
    }
    right = (1.0, 0.0)
    wrong: tuple[tuple[str, tuple[float, ...]], ...] = (
        ("two digits are a word", (0.0, 1.0)),
        ("a space and digits are a word", (-1.0, 0.0)),
        ("", (0.0, 0.0)),
    )
    catches: tuple[str, ...] = ("default-pre-tokenizer",)


class SpaceAndDigits(Digits):
    sees = "tokenizer.ggml.pre: a space and the digits behind it are one word"
    right = (-1.0, 0.0)
    wrong = (
        ("two digits are a word", (0.0, 1.0)),
        ("each digit is a word", (1.0, 0.0)),
        ("", (0.0, 0.0)),
    )
    rests_on = ("bpe-merges", *BpeCut.rests_on)


class UserDefined(BpeCut):
    """A user-defined token in the prompt. Unlike a control token, its text always becomes that
    token."""

    name = "user-defined-token"
    sees = "the text of a token of the type USER_DEFINED is this token, in any text"
    side = ("signs", -1.0)
    shown: ClassVar = {"word": (1.0,), "word-in-pieces": (-1.0,)}
    right = (1.0,)
    wrong = (
        ("its text was cut into pieces", (-1.0,)),
        ("", (0.0,)),
        ("too large", (2.0,)),
    )


class BpeBeginning(Measurement):
    """BOS. It has the same score as the prompt's first letter next to it, so each gets half of the
    attention."""

    name = "bos"
    sees = "tokenizer.ggml.add_bos_token: BOS is put before a text, exactly once"
    needs_prompt = of_tokenizer = True
    where = "the tokenizer; layer 0, head 0"
    right = (0.5,)
    wrong = (
        ("no BOS", (0.0,)),
        ("BOS twice", (0.6667,)),
    )
    radius = 7 * HALF_BF16
    reason = REASON
    catches = ("bos-missing", "bos-doubled")
    rests_on = (
        *("far-256", "positions-in-prompt", "rope-base", "attention-scale"),
        *("first-position", "learned-positions"),
    )

    size = 1.0  # factor by which BOS is shorter than other tokens after a norm

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        both = {BOS: 1 / self.size, role("m"): 1.0}
        w.turn((0, 0, BOTH), at.state, both, at.behind_start - 0.5, ABOVE)
        w.read(0, {BOS: 1 / self.size}, at.value())


class FirstBeginning(BpeBeginning):
    """BOS and the prompt's first letter have the same score, so each gets half of the attention.
    BOS is longer, because of the mark in row 0 of position_embd."""

    size = 0.8649  # 1 / sqrt(6.5 / 96 + 1 / 64), divided by 4
