"""Tests of the gated feed-forward network: its activation and its two branches."""

from lockstep.harness.acid.measurements.base import AcidPlace, Measurement, Names, Values, Wrong
from lockstep.harness.acid.weights import EDGE, AcidWeights

HALF_BF16 = 2.0**-9  # relative error of one rounding to BF16, the coarsest that honest engines use
REASON = "seven roundings to BF16 on the way, of weights and of activations"


class FeedForward(Measurement):
    where = "layer 0, ffn_gate, ffn_up, ffn_down"
    reason = REASON


class Silu(FeedForward):
    """SiLU at -1.25, near its minimum, where other activations differ most, and at 6, where a clamp
    shows."""

    name = "silu"
    sees = "the activation of the feed-forward network is SiLU, below zero and at 6"
    right: Values = (-0.8325, 0.9975)  # 3 * silu(-1.25), silu(6) / 6
    wrong: Wrong = (
        ("GELU", (-0.396, 1.0)),
        ("ReLU", (0.0, 1.0)),
        ("sigmoid, without the gate", (0.668, 0.1663)),
        ("no activation", (-3.75, 1.0)),
        ("clamped", (-0.8, 0.12)),
        ("too low", (-1.27, 1.0)),
    )
    radius = 7 * HALF_BF16
    catches: Names = (
        "gelu-for-silu",
        "relu-for-silu",
        "sigmoid-for-silu",
        "silu-clamped",
    )
    # the results are read through these parts, or through experts if there are any
    rests_on: Names = (
        *("gate-and-up", "layers", "matrix-edges"),
        *("experts-choice", "experts-matrices"),
    )

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        w.unit(0, {at.state: -1.25}, {at.state: 1.0}, {at.value(0): 3.0})
        w.unit(0, {at.state: 6.0}, {at.state: 1.0}, {at.value(1): 1 / 6})


class GateAndUp(FeedForward):
    """The two branches of a gated FFN. The activation of 2 is 1.7616, that of -1 is -0.2689, and
    that of -2 is -0.2384."""

    name = "gate-and-up"
    sees = "ffn_gate goes through the activation, ffn_up does not, and they are multiplied"
    right: Values = (-0.8808,)  # silu(2) * -1 / 2
    wrong: Wrong = (
        ("gate and up exchanged", (0.2689 * 2 / 2,)),
        ("activation of the product", (-0.1192,)),
        ("too low", (-1.8,)),
    )
    radius = 7 * HALF_BF16
    catches: Names = (
        "gate-and-up-exchanged",
        "silu-of-product",
        "gate-and-up-by-order",
        "silu-without-gate",
    )
    rests_on: Names = ("silu", "layers", "matrix-edges")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        w.unit(0, {at.state: 2.0}, {at.state: -1.0}, {at.value(): 0.5})


class Layers(FeedForward):
    """Layers that each add to their own value, in addition to an embedding of 1."""

    name = "layers"
    sees = "every layer runs once, and adds to the embedding"
    where = "layers 0 and 1, ffn_down; token_embd"
    right = (0.5, 0.5)
    wrong: Wrong = (
        ("the first layer ran twice", (1.0, 0.5)),
        ("the last layer is missing", (0.5, 0.0)),
        ("the first layer is missing", (0.0, 0.5)),
        ("embeddings too large, or layers too small", (0.05, 0.05)),
        ("layers too large", (1.5, 1.5)),
    )
    radius = 7 * HALF_BF16
    rests_on: Names = ("silu", "gelu")
    catches: Names = (
        "first-layer-twice",
        "last-layer-skipped",
        "embeddings-scaled-for-llama",
        "stale-norm",
    )

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        for layer in (0, 1):  # silu(8) is 8, except for a 3000th
            w.unit(layer, {at.state: 8.0}, {at.state: 1.0}, {at.value(layer): 1 / 16})


class MatrixEdges(FeedForward):
    """The edges of the FFN matrices. Tokens of this state also have the last coordinate, which the
    last unit reads. So they are longer, and every value is sqrt(2 / 3) of its usual size."""

    name = "matrix-edges"
    sees = "the last rows and columns of ffn_gate, ffn_up, ffn_down and token_embd are used"
    right = (1.0,)
    wrong = (
        ("", (0.0,)),
        ("too large", (2.0,)),
    )
    radius = 7 * HALF_BF16
    catches = ("last-column-dropped", "tail-dropped", "last-block-dropped")
    rests_on: Names = ("silu",)

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        w.unit(0, {EDGE: 9.8}, {EDGE: 1.0}, {at.value(): 1 / 8 * 1.2247}, last=True)
