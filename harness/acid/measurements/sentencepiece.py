"""Tests of a SentencePiece tokenizer. Attention finds the ids of the acid prompt by their
embeddings."""

from collections.abc import Mapping
from typing import ClassVar

from lockstep.harness.acid.measurements.base import AcidPlace, Measurement
from lockstep.harness.acid.measurements.feed_forward import HALF_BF16
from lockstep.harness.acid.measurements.scores import REASON
from lockstep.harness.acid.tokens import role
from lockstep.harness.acid.vocabulary import BOS
from lockstep.harness.acid.weights import AcidWeights, free

FOUND = 90.0  # a score that suffices even where a slow pair has rotated by a radian
# Elements of keys and values that no other test uses. In an engine that rotates wrong pairs, slow
# elements may not be slow, and would show those tests.
SLOW, LESS = 25, 18
VALUES = tuple(range(5, 16))
# the pairs that find the prompt's beginning, and the score by which they lead
BEGINS, FIRST, ABOVE = 7, 6, 25.0


class Cut(Measurement):
    """A test of how a prompt is cut into pieces. `shown`: values of the possible tokens, the right
    one first; `side`: the layer, an element of its keys, and the sign to look for. Two tests may
    share an element."""

    needs_prompt = of_tokenizer = True
    where = "the tokenizer"
    shown: ClassVar[Mapping[str, tuple[float, ...]]]
    side: ClassVar[tuple[int, int, float]]
    radius = 7 * HALF_BF16
    reason = REASON
    rests_on: tuple[str, ...] = ("positions-in-prompt", "far-64", "rope-pairing", "rope-base")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        layer, element, sign = self.side
        w.key(layer, element, {role(name): sign for name in self.shown})
        w.query(layer, 0, element, at.state, sign * FOUND)
        self.read(w, at, layer)

    def read(self, w: AcidWeights, at: AcidPlace, layer: int) -> None:
        for i in range(len(self.right)):
            parts = {role(name): values[i] for name, values in self.shown.items() if values[i]}
            self.read_parts(w, layer, parts, at.value(i))

    def read_parts(self, w: AcidWeights, layer: int, parts: Mapping[str, float], to: str) -> None:
        element = free(VALUES, w.values, (layer,))
        w.value(layer, element, parts)
        w.out(layer, 0, element, to)


class Bos(Cut):
    """BOS. It has the same score as the prompt's first token next to it, so each gets half of the
    attention."""

    name = "bos"
    sees = "tokenizer.ggml.add_bos_token: BOS is put before a text, exactly once"
    right = (0.5,)
    wrong = (
        ("no BOS", (0.0,)),
        ("BOS twice", (0.6667,)),
    )
    radius = 8 * HALF_BF16
    reason = "scores within 2^-7 of each other, and seven roundings to BF16"
    catches = ("bos-missing", "bos-doubled")
    rests_on = ("far-256", "rope-pairing", "rope-base", "attention-scale")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        either = {BOS: 1.0, role("with-space"): 1.0, role("without-space"): 1.0}
        w.turn((0, 0, BEGINS), at.state, either, at.behind_start - 0.5, ABOVE)
        self.read_parts(w, 0, {BOS: 1.0}, at.value())


class SpacePrefix(Cut):
    """The space prefix. The prompt begins with h, which is a token both with and without a space in
    front."""

    name = "space-prefix"
    sees = "tokenizer.ggml.add_space_prefix: a space is put before a text"
    shown: ClassVar = {"with-space": (1.0,), "without-space": (-1.0,)}
    right = (1.0,)
    wrong = (
        ("no space is put before it", (-1.0,)),
        ("", (0.0,)),
        ("too large", (2.0,)),
    )
    catches = ("no-space-prefix",)
    rests_on = ("far-256", "rope-pairing", "rope-base", "attention-scale")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        either = {role(name): 1.0 for name in self.shown}
        w.turn((0, 0, FIRST), at.state, either, at.behind_start - 1, ABOVE)
        self.read(w, at, 0)


class Merges(Cut):
    """The merges of "abc". The merge of b and c has the better score, and that of a and b the lower
    id."""

    name = "merges"
    sees = "characters are merged, the pair whose token has the best score first"
    side = (0, SLOW, 1.0)
    shown: ClassVar = {"best-score": (1.0,), "first-token": (-1.0,)}
    right = (1.0,)
    wrong = (
        ("by the order of the tokens, or from the left", (-1.0,)),
        ("nothing is merged", (0.0,)),
        ("too large", (2.0,)),
    )
    catches = ("merges-by-rank",)


class EqualMerges(Cut):
    """The merges of "def", in which both pairs have the same score."""

    name = "merges-alike"
    sees = "if two pairs have the same score, the left one is merged"
    side = (0, LESS, 1.0)
    shown: ClassVar = {"left-of-two": (1.0,), "right-of-two": (-1.0,)}
    right = (1.0,)
    wrong = (
        ("the right one", (-1.0,)),
        ("neither is merged", (0.0,)),
        ("too large", (2.0,)),
    )
    catches = ("ties-to-the-right",)
    rests_on = (*Cut.rests_on, "merges")


class PoorMerges(Cut):
    """A poor merge. The token "uv" has a score below the sum of the scores of u and v."""

    name = "merges-not-sums"
    sees = "every possible merge is made, however poor its score (no unigram tokenizer)"
    side = (0, LESS, -1.0)
    shown: ClassVar = {"merged": (1.0,), "best-sum": (-1.0,)}
    right = (1.0,)
    wrong = (
        ("kept apart, as by the best sum of scores", (-1.0,)),
        ("", (0.0,)),
        ("too large", (2.0,)),
    )
    catches = ("unigram-for-llama",)
    rests_on = (*Cut.rests_on, "merges")


class Bytes(Cut):
    """The spelling of an e with an accent as its two UTF-8 bytes, because no token is that
    character."""

    name = "byte-fallback"
    sees = "a character without a token is spelled in tokens of its bytes"
    side = (1, LESS, 1.0)
    shown: ClassVar = {
        "byte-of-utf-8": (1.0, 0.0),
        "byte-of-latin-1": (0.0, 1.0),
        "unknown": (-1.0, 0.0),
    }
    right = (1.0, 0.0)
    wrong = (
        ("the unknown token", (-1.0, 0.0)),
        ("characters for bytes", (0.5, 0.5)),
        ("nothing", (0.0, 0.0)),
        ("too large", (2.0, 0.0)),
    )
    catches = ("no-byte-fallback",)


class TwoSpaces(Cut):
    """Spaces. Two spaces are one token, and a single space is another token."""

    name = "two-spaces"
    sees = "two adjacent spaces stay two"
    side = (1, LESS, -1.0)
    shown: ClassVar = {"two-spaces": (1.0,), "one-space": (-1.0,)}
    right = (1.0,)
    wrong = (
        ("they are made one, or not merged", (-1.0,)),
        ("no space", (0.0,)),
        ("too large", (2.0,)),
    )
    catches = ("spaces-merged",)


class Specials(Cut):
    """A control token's text in the prompt. In a chat it becomes that token, and the text after it
    begins with a space, as any text does. In plain text generation it stays text."""

    name = "special-tokens"
    sees = "the text of a control token becomes that token and a space, or stays text"
    side = (0, SLOW, -1.0)
    shown: ClassVar = {
        "parsed": (1.0, 0.0),
        "as-text": (-1.0, 0.0),
        "space-behind": (0.0, 1.0),
        "nothing-behind": (0.0, -1.0),
    }
    right = (0.5, 0.5)
    wrong = (
        ("ok (as text)", (-0.5, -0.5)),
        ("no space behind it", (0.5, -0.5)),
        ("", (0.0, 0.0)),
        ("too large", (1.5, 1.5)),
    )
    radius = 0.08
    reason = "tokens up to three positions apart, whose scores lie within 0.3 of each other"
