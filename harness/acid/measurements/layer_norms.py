"""Tests of norms that subtract the mean and add a bias."""

from lockstep.harness.acid.centred import Centred
from lockstep.harness.acid.measurements.base import AcidPlace, Measurement
from lockstep.harness.acid.measurements.feed_forward import HALF_BF16, REASON
from lockstep.harness.acid.measurements.norms import FfnNormWeight
from lockstep.harness.acid.weights import CONST, NOTHING, SMALL, AcidWeights


class Mean(Measurement):
    """The mean. Tokens of this state also have a coordinate of 2, so their mean is 1/48, which
    shows in unused coordinates. The unit adds 62 times the mean to the state. The last norm
    subtracts the mean from the measured value as well, so 0.8813 becomes 0.73."""

    name = "norm-mean"
    sees = "the norm subtracts the mean"
    where = "layer 0, ffn_norm"
    right = (0.7299,)
    wrong = (
        ("the mean is not subtracted", (0.3873,)),
        ("too large", (1.1,)),
    )
    radius = 9 * HALF_BF16
    reason = "nine roundings to BF16, two of them of what the mean makes"
    catches = ("layer-norm-uncentred",)
    rests_on = ("gelu",)

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        assert isinstance(w, Centred)
        w.uncentred[at.state] = 2.0
        w.unit(0, {at.state: 4.0, NOTHING: -62.0 * w.shape.unit}, {}, {at.value(): 1 / 8})


class Eps(Measurement):
    """A norm with an eps of 1/64, which is a quarter of the sum in the square root."""

    name = "norm-eps"
    sees = "the norm adds attention.layer_norm_epsilon of the file to the variance"
    where = "layer 0, ffn_norm"
    right = (1.0,)
    wrong = (
        ("eps too small, or left out", (1.1547,)),
        ("eps added to the root", (1.077,)),
        ("eps too large", (0.85,)),
    )
    radius = 7 * HALF_BF16
    reason = REASON
    catches = ("layer-norm-eps-outside",)
    rests_on = ("gelu", "learned-positions")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        w.unit(0, {at.state: 8.0}, {}, {at.value(): 1 / 8})


class Bias(Measurement):
    """The biases of three norms. A coordinate that is zero in all tokens has a bias of 4 in
    ffn_norm of layer 0, and a unit adds 4 to it. Its bias in attn_norm of layer 1 is 1, and a head
    reads it. The third value is a bias of the last norm."""

    name = "norm-bias"
    sees = "the biases of ffn_norm, attn_norm and output_norm are added"
    where = "layer 0, ffn_norm.bias; layer 1, attn_norm.bias; output_norm.bias"
    right = (1.0, 1.0, 1.0)
    wrong = (
        ("no biases", (0.5, 0.0, 0.0)),
        ("none in ffn_norm", (0.5, 1.0, 1.0)),
        ("none in attn_norm", (1.0, 0.0, 1.0)),
        ("none in output_norm", (1.0, 1.0, 0.0)),
        ("biases twice", (1.5, 2.0, 2.0)),
    )
    radius = 14 * HALF_BF16
    reason = "seven roundings to BF16, of numbers up to 12 where 8 is left"
    catches = ("layer-norm-without-bias", "norms-exchanged")
    rests_on = ("gelu", "earlier-token", "softmax-division")

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        assert isinstance(w, Centred)
        here, unit = w.coordinate("of a bias"), w.shape.unit
        w.ffn_norm_bias[0, here] = 4.0
        w.unit(0, {at.state: 12.0, CONST: -8.0, "of a bias": unit}, {}, {at.value(0): 1 / 8})
        w.attn_norm_bias[1, here] = 1.0
        w.read(1, {"of a bias": unit}, at.value(1))
        w.output_norm_bias[w.coordinate(at.value(2))] = SMALL * unit


class PlainFfnNormWeight(FfnNormWeight):
    """A state with the weight 4 in ffn_norm, 1/2 in attn_norm, and 2 in ffn_norm of layer 1."""

    rests_on = ("gelu", "output-norm-weight")
    wrong = (
        ("no weight", (0.2443,)),  # gelu(2) / 8
        ("attn_norm taken", (0.1052,)),
        ("ffn_norm of another layer", (0.5,)),
        ("too large", (1.6,)),
    )

    def build(self, w: AcidWeights, at: AcidPlace) -> None:
        here = w.coordinate(at.state)
        w.ffn_norm[0, here], w.ffn_norm[1, here], w.attn_norm[0, here] = 4.0, 2.0, 0.5
        w.unit(0, {at.state: 2.0}, {}, {at.value(): 1 / 8})
