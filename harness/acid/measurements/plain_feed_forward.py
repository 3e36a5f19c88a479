"""Tests of a feed-forward network without gates: its activation, its edges, and its biases."""

from lockstep.harness.acid.centred import Centred
from lockstep.harness.acid.measurements.base import AcidPlace, Measurement
from lockstep.harness.acid.measurements.feed_forward import (
    HALF_BF16,
    FeedForward,
    Layers,
    MatrixEdges,
)
from lockstep.harness.acid.weights import EDGE, SMALL, AcidWeights


class Gelu(FeedForward):
    """GELU at -2, where it is small compared with other activations, and above 1, where a clamp
    shows."""

    name = "gelu"
    sees = "the activation of the feed-forward network is GELU, below zero and at 6"
    where = "layer 0, ffn_up, ffn_down"
    right = (-0.7264, 1.0)  # 16 * gelu(-2), gelu(6) / 6
    wrong = (
        ("the quick GELU", (-1.03, 1.0)),
        ("another constant in GELU", (-1.195, 1.0)),
        ("ReLU", (0.0, 1.0)),
        ("SiLU, or none", (-3.81, 0.9975)),
        ("clamped", (-0.7264, 0.14)),
    )
    radius = 0.02
    reason = "seven roundings to BF16, and four more on the way to -2, where GELU is flat"
    catches = ("gelu-quick", "gelu-constant", "gelu-missing")
    rests_on = (
        "matrix-edges",
        "first-position",
    )  # rows are narrow, and a mark makes a token longer

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        w.unit(0, {at.state: -2.0}, {}, {at.value(0): 16.0})
        w.unit(0, {at.state: 6.0}, {}, {at.value(1): 1 / 6})


class PlainEdges(MatrixEdges):
    """The edges of the FFN matrices. Tokens of this state also have the last coordinate, which the
    last unit reads. So they are longer, and every value is 0.795 of its usual size."""

    where = "layer 0, ffn_up, ffn_down"
    sees = "the last rows and columns of ffn_up, ffn_down and token_embd are used"
    rests_on = ("gelu", "newest-token", "earlier-token")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        w.unit(0, {EDGE: 10.07}, {}, {at.value(): 1 / 8}, last=True)


class PlainLayers(Layers):
    """Layers that each add to their own value. Attention's tests use the same coordinates."""

    rests_on = ("gelu", "newest-token", "earlier-token")
    catches = (*Layers.catches, "cache-keys-for-values")


class UpBias(FeedForward):
    """The bias of the up matrix. The unit reads 12 from its state, and has a bias of -4."""

    name = "ffn-up-bias"
    sees = "the bias of ffn_up is added, before the activation"
    where = "layer 0, ffn_up.bias"
    right = (1.0,)
    wrong = (
        ("no bias", (1.5,)),
        ("bias twice", (0.5,)),
        ("nothing", (0.0,)),
    )
    radius = 14 * HALF_BF16
    reason = "seven roundings to BF16, of numbers up to 12 where 8 is left"
    # these tests use its coordinates for their values
    rests_on = ("gelu", "newest-token", "earlier-token")
    catches = ()

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        assert isinstance(w, Centred)
        unit = w.free_unit(0)
        w.gate[0, unit, w.coordinate(at.state)] = 12.0 / w.shape.unit
        w.up_bias[0, unit] = -4.0
        w.down[0, w.coordinate(at.value()), unit] = SMALL / 8


class Added(Measurement):
    """Biases that are added to every token, in coordinates that nothing else writes. They have
    different signs, so that little is needed to balance them."""

    name = "output-biases"
    sees = "the biases of ffn_down and of attn_output are added"
    where = "layer 1, ffn_down.bias, attn_output.bias"
    right = (1.0, -1.0)
    wrong = (
        ("no biases", (0.0, 0.0)),
        ("none of ffn_down", (0.0, -1.0)),
        ("none of attn_output", (1.0, 0.0)),
        ("biases twice", (2.0, -2.0)),
    )
    radius = 7 * HALF_BF16
    reason = "seven roundings to BF16"
    catches = ("attention-output-bias-missing",)

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        assert isinstance(w, Centred)
        w.down_bias[1, w.coordinate(at.value(0))] = SMALL
        w.o_bias[1, w.coordinate(at.value(1))] = -SMALL
